"""Stands where a raylet wants its agent for the dashboard and for metrics, which imports Ray and answers nobody here.

python idle_agent.py <file> …    # in which the raylet looks for the ports of that agent
"""

import os
import select
import sys
from pathlib import Path

NAME = "dashboard_agent"
"""What the raylet calls it, and what `services` finds it by; the kernel keeps 15 characters."""
UNUSED = "-1"
"""Ray's own word for a port that is not in use."""


def main(files: list[str]) -> None:
    """Says that there are no ports, and ends with the raylet, which would end itself if this ended first."""
    raylet = os.pidfd_open(os.getppid())
    Path("/proc/self/comm").write_text(NAME)
    for file in files:
        written = Path(f"{file}.written")
        written.write_text(UNUSED)
        written.rename(file)
    ended = select.poll()
    ended.register(raylet, select.POLLIN)
    ended.poll()


if __name__ == "__main__":
    main(sys.argv[1:])

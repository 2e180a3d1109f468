"""Which processes a run can't do without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlinf.scheduler.backends.ray.services import children, own_services

AGENT = "import ctypes; ctypes.CDLL(None).prctl(15, b'ray::DashboardAgent', 0, 0, 0); print('named', flush=True); input()"


@pytest.mark.skipif(sys.platform != "linux", reason="names a process")
def test_an_agent_that_an_attempt_to_start_ray_has_left_is_none_of_the_next_one() -> None:
    """It ends by itself, as its raylet is gone, and the run must not end with it."""
    with subprocess.Popen([sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "named\n"
        assert agent.pid in children(os.getpid())
        found = own_services()
        agent.communicate("\n")
    assert agent.pid not in found

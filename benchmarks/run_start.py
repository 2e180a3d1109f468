"""Where the start of a run goes: seconds and CPU-seconds from the command to the end of the first iteration, by process.

    uv run benchmarks/run_start.py                                      # the default recipe of apps/embodied
    uv run benchmarks/run_start.py --config-name maniskill_ppo_mlp_local

CPU-seconds are steady on a busy machine, within a quarter or so; seconds are those of an idle one only. Linux.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "apps/embodied/train.py"
LOOK_S = 0.2
SET_CHILD_SUBREAPER = 36
SHOWN_S = 0.1
"""Processes that took less are left out of the table."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process has taken so far."""

    name: str
    cpu_s: float
    since_s: float
    """Seconds after the command."""


def main() -> None:
    """Starts a run of one iteration, looks at its processes meanwhile, and prints."""
    # Ray's servers detach themselves; they become children of this process then.
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    taken: dict[int, Taken] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = ["runner.experiment_name=run_start", f"runner.logger.log_path={folder}", "runner.max_steps=1"]
        short = ["runner.val_check_interval=0", "env.eval.final_episodes=16", "env.eval.video_cfg.save_video=false"]
        metrics, began = Path(folder) / "run_start/metrics.jsonl", time.monotonic()
        command = [sys.executable, str(TRAIN), *run, *short, *sys.argv[1:]]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
                look(taken, time.monotonic() - began)
                time.sleep(LOOK_S)
            seconds = time.monotonic() - began
            look(taken, seconds)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    load = os.getloadavg()[0]
    print(f"{seconds:.1f} s, {sum(each.cpu_s for each in taken.values()):.1f} CPU-s (load {load:.1f})")
    for each in sorted(taken.values(), key=lambda each: each.since_s):
        if each.cpu_s >= SHOWN_S:
            print(f"  from {each.since_s:5.1f} s  {each.cpu_s:6.1f} CPU-s  {each.name}")


def look(taken: dict[int, Taken], now: float) -> None:
    """Notes what each process below this one has taken; one that has ended keeps what it had."""
    tick = os.sysconf("SC_CLK_TCK")
    fields: dict[int, tuple[str, int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        numbers = rest.split()
        fields[int(folder.name)] = (name, int(numbers[1]), (int(numbers[11]) + int(numbers[12])) / tick)
    for pid, (name, _, cpu_s) in fields.items():
        if pid != os.getpid() and below(pid, fields):
            since = taken[pid].since_s if pid in taken else now
            taken[pid] = Taken(name, cpu_s, since)


def below(pid: int, fields: dict[int, tuple[str, int, float]]) -> bool:
    """Whether a process descends from this one."""
    while pid in fields and pid != os.getpid():
        pid = fields[pid][1]
    return pid == os.getpid()


if __name__ == "__main__":
    main()

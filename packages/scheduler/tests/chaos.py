"""Kills a part of a running pipeline at a random moment, many times, and judges what comes of it.

    python chaos.py [--runs 200] [--seed 0] [--keep folder]

Each run starts `chaos_driver.py`, waits for a random moment of its start, launch, work or shutdown, and sends a signal to a random
process of it: a worker, the driver, or one of Ray's own. The run must then complete, or exit with an error that names the cause
(the killed worker's group and rank; Ray, for one of Ray's processes) within `REACT_S` seconds; `CLEAR_S` seconds later no process
of it may be left, nor a file of ours. Prints a line for each run; exits with 1 if one was bad. A seed gives the same plan again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPORT_S = 10.0
"""From the death of a worker to the error in the driver, before anything is torn down; five on a machine that is not busy."""
REACT_S = 45.0
"""From the signal to the end of the driver, if it can't complete: Ray gives its own processes 30 seconds."""
CLEAR_S = 15.0
"""From the end of the driver to the end of all its processes."""
ROUNDS, ITEMS = 25, 20
"""What the driver does."""
PHASES = {"start": 6.0, "launch": 6.0, "run": 3.0, "shutdown": 1.5}
"""Seconds that each takes; measured anew by the first run, which nobody disturbs, and by every other until its signal."""
TARGETS = {"worker": 49, "driver": 15, "raylet": 8, "gcs_server": 8, "agent": 8, "parent": 6, "guard": 3}
SIGNALS = {"KILL": 5, "SEGV": 1, "TERM": 1, "ABRT": 1, "STOP": 2, "INT": 1}
"""STOP is followed by KILL after a second; INT goes to drivers only."""
KINDS: tuple[tuple[str, str], ...] = (
    # First, as their command lines name what they start.
    ("raylet/raylet", "raylet"),
    ("gcs/gcs_server", "gcs_server"),
    ("process/supervisor.py", "parent"),
    (" guard ", "guard"),
    ("ray::DashboardAgent", "agent"),
    ("ray/idle_agent.py", "agent"),
    ("ray::RuntimeEnvAgent", "agent"),
    ("runtime_env/agent/main.py", "agent"),
    ("dashboard/agent.py", "agent"),
    ("ray::", "worker"),
    ("workers/default_worker.py", "worker"),
)
ENDINGS = "Error|Exceeded|Closed|Interrupt|Exit|Exception|Name|Lost|Failed"
"""Of the names of exceptions."""
RAY = ("raylet", "gcs_server", "agent")


@dataclass(frozen=True)
class Plan:
    """What to kill, and when."""

    seed: int
    phase: str
    part: float
    """Of the phase; a little more than 1 is in the next."""
    target: str
    how: str

    @staticmethod
    def of(seed: int) -> Plan:
        """Drawn from a seed."""
        draw = random.Random(seed)
        target = draw.choices(list(TARGETS), list(TARGETS.values()))[0]
        how = draw.choices(list(SIGNALS), list(SIGNALS.values()))[0]
        return Plan(
            seed, draw.choice(list(PHASES)), draw.uniform(0.0, 1.1), target, "KILL" if how == "INT" and target != "driver" else how
        )


@dataclass
class Victim:
    """Who was hit."""

    pid: int
    kind: str
    who: str
    """`group[rank]` of a worker; `group` while its rank is not known; "" before that."""
    at: float
    """`time.monotonic()`"""


@dataclass
class Watched:
    """What a driver has said so far."""

    phases: list[tuple[float, str]] = field(default_factory=list)
    workers: dict[int, str] = field(default_factory=dict)
    done: int | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def follow(self, lines: Iterator[str], copy: Path) -> None:
        """Reads until the driver has closed its output."""
        with copy.open("w") as file:
            for line in lines:
                file.write(f"{time.monotonic():.3f} {line}")
                words = line.split()
                with self.changed:
                    match words:
                        case ["phase", *phase]:
                            self.phases.append((time.monotonic(), " ".join(phase)))
                        case ["worker", group, rank, pid]:
                            self.workers[int(pid)] = f"{group}[{rank}]"
                        case ["done", total]:
                            self.done = int(total)
                        case _:
                            pass
                    self.changed.notify_all()

    def await_phase(self, phase: str, timeout: float) -> float | None:
        """When it began; None if it did not."""
        with self.changed:
            self.changed.wait_for(lambda: any(name.startswith(phase) for _, name in self.phases), timeout)
            return next((at for at, name in self.phases if name.startswith(phase)), None)


def read(path: str) -> str:
    """A file of /proc; "" if the process is gone."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def processes(session: int, marker: str) -> dict[int, str]:
    """The living processes of a run with their command lines: those of its session, and those that inherited its marker."""
    found: dict[int, str] = {}
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            state = read(f"/proc/{folder}/stat").rpartition(")")[2].split()
            if not state or state[0] in "ZX":
                continue
            if int(state[3]) == session or f"RLINF_CHAOS={marker}\0" in read(f"/proc/{folder}/environ"):
                found[int(folder)] = read(f"/proc/{folder}/cmdline").replace("\0", " ").strip()
    return found


def kind_of(pid: int, command: str, driver: int) -> str:
    """`worker`, `raylet`, …"""
    if pid == driver:
        return "driver"
    return next((kind for part, kind in KINDS if part in command), "other")


def socket_of(pid: int) -> str:
    """`group.rank` of a worker process, by the socket that it listens on; "" if it does not yet."""
    inodes: set[str] = set()
    with contextlib.suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{file}").removeprefix("socket:[").removesuffix("]"))
    for line in read("/proc/net/unix").splitlines():
        words = line.split()
        if len(words) == 8 and words[6] in inodes and "/rlinf-" in words[7] and not words[7].endswith("/driver"):
            return Path(words[7]).name
    return ""


class Run:
    """One driver, disturbed once, or not at all if there is no plan.

    Args:
        plan: what to do to it.
        folder: for its output.
        spans: seconds of each phase.
        patience_s: seconds for what nobody disturbs; None takes three times the phases.
    """

    def __init__(self, plan: Plan | None, folder: Path, spans: dict[str, float], *, patience_s: float | None = None) -> None:
        self.plan = plan
        self.spans = spans
        self.folder = folder
        self.victim: Victim | None = None
        self.patience_s = 3 * sum(spans.values()) if patience_s is None else patience_s
        self.watched = Watched()
        self.marker = f"{os.getpid()}-{time.monotonic_ns()}"
        self.tmp = tempfile.mkdtemp(prefix="rlc-", dir="/tmp")  # a socket's path has room for some hundred characters

    def go(self) -> str:
        """Runs it; what was wrong, or ""."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "TMPDIR": self.tmp, "RLINF_CHAOS": self.marker, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name("chaos_driver.py")), f"--rounds={ROUNDS}"]
        with (self.folder / "stderr").open("w") as errors:
            self.began = time.monotonic()
            self.driver = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        assert self.driver.stdout is not None
        thread = threading.Thread(target=self.watched.follow, args=(self.driver.stdout, self.folder / "stdout"), daemon=True)
        thread.start()
        try:
            return self._judge(thread)
        finally:
            for pid in processes(self.driver.pid, self.marker):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.driver.wait()
            shutil.rmtree(self.tmp, ignore_errors=True)

    def _judge(self, thread: threading.Thread) -> str:
        if self.plan is not None:
            self._strike(self.plan)
        allowed = REACT_S + self.patience_s
        try:
            code = self.driver.wait(timeout=allowed)
        except subprocess.TimeoutExpired:
            self.driver.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            return f"the driver still runs after {allowed:.0f} s\n{self._table()}"
        self.ended = time.monotonic()
        left = self._left()
        thread.join(5.0)
        problems = [self._wrong(code), f"processes left:\n{left}" if left else "", *self._files()]
        return "\n".join(problem for problem in problems if problem)

    def _strike(self, plan: Plan) -> None:
        at = self.began if plan.phase == "start" else self.watched.await_phase(plan.phase, self.patience_s)
        if at is None:
            return
        time.sleep(max(0.0, at + plan.part * self.spans[plan.phase] - time.monotonic()))
        there = {pid: kind_of(pid, command, self.driver.pid) for pid, command in processes(self.driver.pid, self.marker).items()}
        choice = sorted(pid for pid, kind in there.items() if kind == plan.target)
        if not choice:
            choice = sorted(pid for pid, kind in there.items() if kind != "other")
        if not choice:
            return
        pid = choice[plan.seed % len(choice)]
        who = self._who(pid) if there[pid] in ("worker", "parent") else ""
        number = signal.Signals[f"SIG{plan.how}"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            self.victim = Victim(pid, there[pid], who, time.monotonic())
            if plan.how == "STOP":
                time.sleep(1.0)
                os.kill(pid, signal.SIGKILL)

    def _who(self, pid: int) -> str:
        """The worker whose process this is, or is the parent of."""
        pids = [pid, *map(int, read(f"/proc/{pid}/task/{pid}/children").split())]
        known = [self.watched.workers[one] for one in pids if one in self.watched.workers]
        if known:
            return known[0]
        group, dot, rank = next(filter(None, map(socket_of, pids)), "").partition("~")[0].rpartition(".")
        phase = self.watched.phases[-1][1] if self.watched.phases else ""
        return f"{group}[{rank}]" if dot else phase.removeprefix("launch").strip()

    def _wrong(self, code: int) -> str:
        """What is wrong with how the driver ended."""
        expected = ITEMS * ROUNDS
        if code == 0:
            return "" if self.watched.done == expected else f"exit code 0 with {self.watched.done} of {expected} items"
        victim = self.victim
        if victim is None:
            return f"exit code {code}, and nobody was hit"
        if victim.kind == "driver":
            return ""
        if self.ended - victim.at > REACT_S:
            return f"the end came {self.ended - victim.at:.0f} s after the signal"
        cause = final_error(self.folder / "stderr")
        if not cause:
            return f"exit code {code} without a word"
        reported = next((at for at, name in self.watched.phases if name == "shutdown"), self.ended) - victim.at
        if victim.kind == "worker" and reported > REPORT_S and "did not start" not in cause:
            return f"the error came {reported:.0f} s after the signal"
        if victim.kind in RAY:
            return "" if "ray" in cause.lower().replace("array", "") else f"Ray's {victim.kind} was hit, not named in: {cause}"
        return "" if victim.who in cause.partition("failed in")[0] else f"'{victim.who}' was hit, but: {cause}"

    def _left(self) -> str:
        deadline = time.monotonic() + CLEAR_S
        while processes(self.driver.pid, self.marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.cleared = time.monotonic()
        return self._table()

    def _table(self) -> str:
        rows = processes(self.driver.pid, self.marker).items()
        return "\n".join(f"    {pid} {read(f'/proc/{pid}/wchan')} {command[:150]}" for pid, command in rows)

    def _files(self) -> list[str]:
        ours = [str(path) for path in Path(self.tmp).iterdir() if path.name != "ray"]
        ours += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "rlinf" in name]
        return [f"files left: {', '.join(ours)}"] if ours else []

    def describe(self) -> str:
        """One line."""
        plan, victim = self.plan, self.victim
        if plan is None:
            return "undisturbed"
        moment = f"{plan.phase}+{plan.part * self.spans[plan.phase]:.1f}s"
        hit = "nobody" if victim is None else f"{victim.kind} {victim.who} ({victim.pid})"
        ended = getattr(self, "ended", None)
        took = ""
        if victim is not None and ended is not None:
            reported = next((at for at, name in self.watched.phases if name == "shutdown"), ended) - victim.at
            said = f" report {reported:.1f} s," if victim.kind == "worker" else ""
            took = f",{said} end {ended - victim.at:.1f} s, clear {self.cleared - victim.at:.1f} s after the signal"
        return f"seed {plan.seed}: {moment} {plan.how} to {hit}: exit code {self.driver.returncode}{took}"


def final_error(path: Path) -> str:
    """The last exception that the driver showed, with its notes; what follows from it at the interpreter's exit is not meant."""
    text = path.read_text(errors="replace")
    found = list(re.finditer(rf"^(?:[\w.]+\.)?\w*(?:{ENDINGS})\b.*$", text, re.M))
    return found[-1][0] if found else ""


def measured(run: Run) -> dict[str, float]:
    """The length of each phase that nobody disturbed."""
    begins = {name.split()[0]: at for at, name in reversed(run.watched.phases)} | {"start": run.began}
    ends = [begins.get(name) for name in list(PHASES)[1:]] + [getattr(run, "ended", None)]
    until = float("inf") if run.victim is None else run.victim.at
    known = [(name, begins[name], end) for name, end in zip(PHASES, ends, strict=True) if name in begins and end is not None]
    return {name: end - begin for name, begin, end in known if end < until}


def _go(make: Callable[[], Run]) -> tuple[Run, str]:
    """A run and its judgement; anew if Ray, which gives its own start thirty seconds, could not start on a busy machine."""
    for _ in range(4):
        run = make()
        problem = run.go()
        if run.victim is not None or "Ray did not start" not in (run.folder / "stderr").read_text(errors="replace"):
            return run, problem
    run = make()
    return run, run.go()


def chaos(seeds: range, keep: Path, say: Callable[[str], object]) -> int:
    """Runs them all; how many were bad."""
    first, problem = _go(lambda: Run(None, keep / "undisturbed", dict(PHASES), patience_s=300.0))
    say(f"undisturbed: {problem or 'good'}")
    if problem:
        return 1
    spans = measured(first)
    say(" ".join(f"{name} {seconds:.1f} s" for name, seconds in spans.items()))
    bad = 0
    for seed in seeds:
        run, problem = _go(lambda seed=seed: Run(Plan.of(seed), keep / str(seed), dict(spans)))
        spans.update(measured(run))
        say(f"{'BAD ' if problem else 'good'} {run.describe()}, load {os.getloadavg()[0]:.1f}")
        if problem:
            bad += 1
            say("  " + problem.replace("\n", "\n  "))
            (run.folder / "verdict").write_text(f"{run.describe()}\n{problem}\n")
        else:
            shutil.rmtree(run.folder)
    say(f"{len(seeds) - bad} of {len(seeds)} runs were good")
    return bad


def main() -> None:
    """As many runs as asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its drivers
    keep = args.keep or Path(tempfile.mkdtemp(prefix="rlinf-chaos-"))
    sys.exit(min(1, chaos(range(args.seed, args.seed + args.runs), keep, lambda line: print(line, flush=True))))


if __name__ == "__main__":
    main()

"""Short traced runs of recipes, which tell the planner what their components cost: `rlinf plan --profile recipe.yaml`.

A calibration is the recipe's own run, started like `rlinf train`, with the tracer on. It is asked to end, as by Ctrl-C, when enough
of its steps are in the trace; what it wrote is removed afterwards.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError
from rlinf.core.process import ChildProcess, log_ending
from rlinf.core.registry import RECIPES
from rlinf.scheduler.trace.reading import spans
from rlinf.scheduler.trace.steps import FEWEST, Steps

STEPS = 5
"""Steps after the first that a calibration runs."""
RECIPE = (".yaml", ".yml")
_RLINF = "import sys; from rlinf.core.commands import main; sys.exit(main())"
_GRACE_S = 120.0
"""For the iteration that it is in, and for its checkpoint."""
_LOOK_S = 1.0
TELL_EVERY_S = 30.0


@contextmanager
def calibrated(profiles: Sequence[str], *, timeout_s: float, tell: Callable[[str], None]) -> Generator[list[str | Path]]:
    """Inside, recipes among profiles are traces of short runs of them.

    Args:
        profiles: profiles and traces, which stay as they are, and recipes, each with overrides behind it if it has some:
            `recipe.yaml cluster.component_placement.env=0`.
        timeout_s: seconds that each may take.
        tell: is given lines that say what is going on.

    Raises:
        ConfigError: nothing runs recipes, or a recipe has a fault.
        RLinfError: a run failed; its last lines are named.
        DeadlineExceeded: a run has not got so far in time.
    """
    with ExitStack() as folders:
        found: list[str | Path] = []
        for profile in profiles:
            words = shlex.split(profile)
            if not words or not words[0].endswith(RECIPE):
                found.append(profile)
                continue
            readers = RECIPES.names()
            if not readers:
                remedy = "Install rlinf-runners, or give the planner a trace."
                raise ConfigError("rlinf plan --profile", f"nothing that is installed runs '{words[0]}'", remedy)
            # What is refused when it is read is refused as by `rlinf train`, before a run of it is started.
            RECIPES.get(readers[0])(Path(words[0]), words[1:])
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="rlinf-plan-", ignore_cleanup_errors=True)))
            tell(f"running {STEPS + 1} steps of {profile}")
            found.append(_run(words, folder, timeout_s, tell))
        yield found


def _run(recipe: Sequence[str], folder: Path, timeout_s: float, tell: Callable[[str], None]) -> Path:
    trace, log = folder / "trace.json", folder / "log.txt"
    ours = ("cluster.tracer.enabled=true", f"cluster.tracer.path={trace}", f"runner.logger.log_path={folder / 'logs'}")
    # No evaluation before the end, which the run does not reach.
    command = [sys.executable, "-c", _RLINF, "train", *recipe, *ours, "runner.val_check_interval=0"]
    child = ChildProcess(command, log=log, grace_s=_GRACE_S)
    began = told = time.monotonic()
    while (seen := _steps(folder)) < STEPS and child.wait(_LOOK_S) is None:
        now = time.monotonic()
        if now - told > TELL_EVERY_S:
            told = now
            tell(f"{seen} of {STEPS} steps after the first are measured, after {now - began:.0f} s")
        if now - began > timeout_s:
            child.stop()
            problem = f"the run has done {seen} of {STEPS} steps after {timeout_s:g} s{log_ending(log)}"
            raise DeadlineExceeded(f"calibration of {recipe[0]}", problem, "Give it more time: --calibration-s.")
    child.stop()
    # A run that is shorter has ended by itself, and one that had no time to end left its parts.
    seen = _steps(folder)
    if seen < FEWEST - 1:
        place, remedy = f"calibration of {recipe[0]}", "Mend it, or give the planner a trace."
        if child.returncode == ConfigError.exit_code:
            raise ConfigError(place, f"the run is refused{log_ending(log)}", remedy)
        raise RLinfError(place, f"the run {child.cause()}", remedy)
    return trace if trace.is_file() else next(folder.glob("trace.json.*.parts"))


def _steps(folder: Path) -> int:
    """How many steps after the first are in the trace, or in what the processes of the run have written so far."""
    return max((_count(found) for found in folder.glob("trace.json*")), default=0)


def _count(trace: Path) -> int:
    try:
        return len(Steps.find(spans(trace), source=trace).seconds)
    except (RLinfError, OSError):
        return 0

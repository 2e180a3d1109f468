"""A part of a pipeline is killed: the run completes, or names the cause in time, and leaves nothing behind. See `chaos.py`."""

from pathlib import Path

import chaos
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]
OWN_RAY = True


@pytest.mark.parametrize(
    ("phase", "part", "target", "how"),
    [
        ("run", 0.5, "worker", "KILL"),
        ("launch", 0.9, "worker", "SEGV"),
        ("run", 0.3, "driver", "KILL"),
        ("run", 0.4, "raylet", "KILL"),
        ("run", 0.2, "gcs_server", "KILL"),
    ],
)
def test_one_is_killed(phase: str, part: float, target: str, how: str, tmp_path: Path) -> None:
    for _ in range(3):  # Ray gives its own start thirty seconds, which a busy machine may need
        run = chaos.Run(chaos.Plan(7, phase, part, target, how), tmp_path, chaos.PHASES, patience_s=240.0)
        problem = run.go()
        if run.victim is not None:
            break
    errors = (tmp_path / "stderr").read_text()
    assert run.victim is not None, errors[-3000:]
    assert problem == "", f"{run.describe()}\n{errors[-3000:]}"


def test_two_hundred_are_killed(tmp_path: Path) -> None:
    """Three quarters of an hour on a machine that is not busy."""
    assert chaos.chaos(range(200), tmp_path, print) == 0

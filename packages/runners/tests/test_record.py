"""What a run keeps of an iteration, whatever its evaluation does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf.runners.reporting.record import RunRecord


def record(written: list[tuple[int, dict[str, float]]], *, save: Any = lambda: None) -> RunRecord:
    """An evaluation is due after every second of four iterations."""
    return RunRecord(
        config=cast("Any", SimpleNamespace(max_steps=4, val_check_interval=2)),
        checkpoints=cast("Any", SimpleNamespace(save_if_due=save, stopping=False, stop_if_asked=lambda: None)),
        log=cast("Any", SimpleNamespace(write=lambda step, scalars: written.append((step, scalars)))),
        progress=cast("Any", SimpleNamespace(evaluation=lambda brief: None, iteration=lambda step, *parts: None)),
    )


def test_an_evaluation_is_written_beside_the_training_that_it_follows() -> None:
    written: list[tuple[int, dict[str, float]]] = []
    for step in (1, 2, 3, 4):
        record(written).iteration(step, {"train/loss": 0.5}, [], lambda: ({"eval/return": 3.0}, "3.0"))
    plain = {"train/loss": 0.5}
    assert written == [(1, plain), (2, {**plain, "eval/return": 3.0}), (3, plain), (4, plain)]


def failing() -> Any:
    raise RuntimeError("the simulator has ended")


@pytest.mark.parametrize("where", [{}, {"save": failing}])
def test_what_was_trained_is_written_where_saving_or_evaluating_fails(where: dict[str, Any]) -> None:
    written: list[tuple[int, dict[str, float]]] = []
    with pytest.raises(RuntimeError, match="the simulator has ended"):
        record(written, **where).iteration(2, {"train/loss": 0.5}, [], failing)
    assert written == [(2, {"train/loss": 0.5})]

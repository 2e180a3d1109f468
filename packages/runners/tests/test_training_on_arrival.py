"""The actor trains on each rollout epoch when it comes: in which order, on what, and what later update epochs see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from embodied_actor_toy import SEEN, Tells, actor, rows

from rlinf.core.metrics import Metric


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


@dataclass
class Notes(Tells):
    """Writes down what is received and trained on, in the order in which it happens."""

    events: list[Any] = field(default_factory=list[Any])

    def step(self, micro_batches: Sequence[Any], loss: Any) -> dict[str, Any]:
        self.events.append([int(n) for part in micro_batches for n in part.trajectory.context["number"][:, 0]])
        return {"loss": Metric(float(len(self.events)))}

    def reference(self, batch: Any) -> Any:
        self.events.append(("reference", len(batch)))
        return torch.zeros_like(batch.trajectory.logprob)

    def keeping_reference(self) -> Any:
        return self


class Sent:
    """A channel with what two env workers send: three rollout epochs of two rows of two decisions each, numbered."""

    def __init__(self, trainer: Notes, order: Sequence[tuple[int, int]]) -> None:
        self.trainer, self.items = trainer, [(rank, _part(rank, epoch), epoch) for rank, epoch in order]

    def get(self, *, key: Any) -> Any:
        rank, part, number = self.items.pop(0)
        self.trainer.events.append(("received", rank))
        return rank, part, number


def _part(rank: int, epoch: int) -> Any:
    part = rows(2, 2)
    part = replace(part, mask=torch.ones(2, 2, dtype=torch.bool), group=torch.tensor([2 * rank, 2 * rank + 1]) + 4 * epoch)
    number = part.context["number"] + 100 * rank + 10 * epoch
    return replace(part, context={"number": number}, logprob=number[..., None, None].expand(2, 2, 2, 2)).map(lambda x: x.numpy())


IN_ORDER = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
AHEAD = [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]


def piped(data: dict[str, Any], trainer: Notes, order: Sequence[tuple[int, int]], **runner: Any) -> Any:
    data["env"]["train"] |= {"rollout_epoch": 3, "max_steps_per_rollout_epoch": 2}
    data["runner"] |= runner
    data["algorithm"] |= {"update_epoch": 2}
    worker = actor(data, trainer, rows(1), global_batch_size=4)
    worker._trajectory = None
    if runner:
        worker.train_on_arrival(5, Sent(trainer, order), 2)
    else:
        worker.recv_rollout_batch(Sent(trainer, order), 2)
    return worker


def of_epochs(steps: Sequence[Any]) -> list[list[int]]:
    return [sorted({number // 10 % 10 for number in step}) for step in steps]


def test_a_rollout_epoch_is_trained_on_before_the_next_has_come(toy_data: dict[str, Any]) -> None:
    trainer = Notes()
    worker = piped(toy_data, trainer, IN_ORDER, use_training_pipeline=True)
    received, steps = [("received", 0), ("received", 1)], [event for event in trainer.events if isinstance(event, list)]
    assert trainer.events[:4] == [*received, *steps[:2]]
    assert trainer.events[4:8] == [*reversed(received), *steps[2:4]]
    assert of_epochs(steps) == [[0], [0], [1], [1], [2], [2]], "8 decisions of each rollout epoch in steps of 4"
    every = sorted(100 * rank + 10 * epoch + n for rank in range(2) for epoch in range(3) for n in range(4))
    assert sorted(number for step in steps for number in step) == every, "each decision once"
    assert [number % 10 for number in steps[0]] != [number % 10 for number in steps[2]], "in an order of its own"
    assert len(SEEN) == 1, "the gate is passed once, with what came first"
    trainer.events.clear()
    worker.compute_advantages_and_returns()
    metrics = worker.run_training(5)
    later = trainer.events
    assert [len(step) for step in later] == [4] * 6
    assert sorted(number for step in later for number in step) == every
    assert any(len(set(of)) > 1 for of in of_epochs(later)), "the second update epoch sees the whole iteration"
    assert metrics["loss"].weight == 12, "metrics are those of all steps"
    worker._trajectory = rows(4)
    worker.compute_advantages_and_returns()
    trainer.events.clear()
    worker.run_training(6)
    assert len(trainer.events) == 2 * 2, "what was taken on arrival counts for its iteration only"


def test_later_update_epochs_are_those_of_a_run_without(toy_data: dict[str, Any]) -> None:
    plain, trainer = Notes(), Notes()
    for worker in (piped(toy_data, plain, IN_ORDER), piped(toy_data, trainer, IN_ORDER, use_training_pipeline=True)):
        worker.compute_advantages_and_returns()
        worker.run_training(5)
    steps = [[event for event in notes.events if isinstance(event, list)] for notes in (plain, trainer)]
    assert steps[0][6:] == steps[1][6:]
    assert steps[0][:6] != steps[1][:6]


def test_the_steps_do_not_depend_on_who_is_ahead(toy_data: dict[str, Any]) -> None:
    first, second = Notes(), Notes()
    for trainer, order in ((first, IN_ORDER), (second, AHEAD)):
        piped(toy_data, trainer, order, use_training_pipeline=True)
    steps = [[event for event in notes.events if isinstance(event, list)] for notes in (first, second)]
    assert steps[0] == steps[1]


def test_a_reference_is_asked_once_for_each_decision(toy_data: dict[str, Any]) -> None:
    toy_data["reference"] = {"source": "initial"}
    trainer = Notes()
    worker = piped(toy_data, trainer, IN_ORDER, use_training_pipeline=True)
    worker.compute_advantages_and_returns()
    assert sum(event[1] for event in trainer.events if event[0] == "reference") == 24
    assert worker._batch.trajectory.reference is not None

"""What several ranks train on, seen by trainers that write it down: which responses, in which order, with what of credit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from ranks_toy import Meeting

from rlinf.core.data import Credit, Rescored, Trajectory
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.registry import GATES
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.reasoning.actor_worker import ReasoningActor
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import ReasoningTopology


@dataclass(frozen=True)
class OpenGate:
    tolerance: float
    allowed_share: float

    def measure(self, scores: Any) -> dict[str, Any]:
        return {}

    def check(self, scores: Any, *, place: str) -> dict[str, Any]:
        return {}


GATES.register("open_gate")(OpenGate)


@dataclass
class Notes:
    """A trainer for which each token has the log-probability of its row's number."""

    add: Callable[[torch.Tensor], torch.Tensor]
    valued: bool = False
    version: int = 0
    steps: list[list[int]] = field(default_factory=list)
    """The numbers of the rows of each step."""
    seen: list[Any] = field(default_factory=list)

    def evaluate(self, batch: Any) -> Rescored[Any]:
        number = batch.trajectory.context["input_ids"].float()
        return Rescored(logprob=-number, value=number if self.valued else None)

    def step(self, micro_batches: Sequence[Any], loss: Any) -> dict[str, Any]:
        self.steps.append([int(n) for part in micro_batches for n in part.trajectory.context["input_ids"][:, 0]])
        self.seen.extend(micro_batches)
        return {}

    def all_reduce(self, value: Any) -> Any:
        return self.add(value)


@dataclass(frozen=True)
class NotesConfig:
    trainer: Notes

    def build(self, policy: Any, **ranks: Any) -> Notes:
        return self.trainer


@dataclass
class Ranks:
    """Actors of one group, and what their advantages were told."""

    actors: list[ReasoningActor]
    trainers: list[Notes]
    adders: list[Any]

    def each(self, call: Callable[[ReasoningActor], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.actors)) as pool:
            return list(pool.map(call, self.actors))

    def train(self, step: int = 0) -> None:
        self.each(lambda actor: actor.compute_advantages_and_returns())
        self.each(lambda actor: actor.run_training(step))


def trajectory(*numbers: int) -> Trajectory[Any]:
    """Rows of two tokens; each is its number's, and so is its group."""
    ids = torch.tensor(numbers)[:, None].expand(-1, 2)
    mask = torch.tensor([[True, False]] * len(numbers))
    return Trajectory(
        context={"input_ids": ids.clone(), "segment_ids": torch.ones_like(ids)},
        action=ids.clone()[..., None, None],
        logprob=-0.5 * mask,
        reward=torch.zeros(ids.shape),
        terminated=mask,
        truncated=~mask,
        mask=mask,
        version=torch.zeros_like(ids),
        group=torch.tensor(numbers),
        task=torch.zeros(len(numbers), dtype=torch.int64),
    ).map(lambda leaf: leaf.numpy())


def ranks(
    data: dict[str, Any], new_queue: Any, *received: Sequence[int], shares: Sequence[int] = (), valued: bool = False
) -> Ranks:
    """Actors that have received their rows, from two reward workers: the first half from the second one, which comes first."""
    data["actor"] |= {"gate": "open_gate"}
    meeting, adders, actors, trainers = Meeting(len(received)), [], [], []
    apart = len(set(shares)) == 1
    topology = ReasoningTopology(
        actor="actor", actor_ranks=len(received), rollout="rollout", rollout_ranks=1, reward_ranks=2, actor_shares=tuple(shares)
    )
    for rank, numbers in enumerate(received):
        trainer = Notes((lambda value: value) if apart else (lambda value, rank=rank: meeting.add(rank, value)), valued)

        def credit(trajectory: Any, *, all_reduce: Any = None) -> Credit[Any]:
            adders.append(all_reduce)
            return Credit(advantage=trajectory.reward)

        cfg = read_reasoning(data)
        cfg = replace(cfg, actor=replace(cfg.actor, trainer=NotesConfig(trainer)))
        cfg = replace(cfg, algorithm=replace(cfg.algorithm, advantage=credit))
        with injected(WorkerContext(group="actor", rank=rank, world_size=len(received))):
            actor = ReasoningActor(cfg)
        actor.init_worker(topology)
        channel, half = new_queue(), len(numbers) // 2
        channel.put((1, trajectory(*numbers[half:]) if numbers[half:] else None), key=rank)
        channel.put((0, trajectory(*numbers[:half]) if numbers[:half] else None), key=rank)
        actor.recv_rollout_batch(channel)
        actors.append(actor)
        trainers.append(trainer)
    return Ranks(actors, trainers, adders)


def joined(steps: Sequence[Sequence[int]]) -> list[int]:
    return [number for step in steps for number in step]


def test_every_response_is_trained_on_once_an_epoch_in_an_order_of_its_own(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["algorithm"]["update_epoch"] = 2
    reasoning_data["actor"]["global_batch_size"] = 4
    found = ranks(reasoning_data, new_queue, range(1, 13))
    found.train()
    steps = found.trainers[0].steps
    assert [len(step) for step in steps] == [4] * 6
    epochs = joined(steps[:3]), joined(steps[3:])
    assert [sorted(epoch) for epoch in epochs] == [list(range(1, 13))] * 2
    assert [set(step) for step in steps[:3]] != [set(step) for step in steps[3:]]
    again = ranks(reasoning_data, new_queue, range(1, 13))
    again.train(step=1)
    assert again.trainers[0].steps != steps, "the iteration counts, too"


def test_the_order_does_not_depend_on_who_delivers_first(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    one, other = (ranks(reasoning_data, new_queue, numbers) for numbers in ((1, 2, 3, 4), (3, 4, 1, 2)))
    one.train()
    other.train()
    assert one.trainers[0].steps == other.trainers[0].steps


def test_ranks_with_unequal_shares_take_equally_many_steps(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["actor"]["global_batch_size"] = 4
    found = ranks(reasoning_data, new_queue, range(1, 9), range(9, 13))
    found.train()
    first, second = (trainer.steps for trainer in found.trainers)
    assert [len(step) for step in first] == [3, 3, 2], "12 responses in steps of 4"
    assert [len(step) for step in second] == [2, 1, 1]
    assert sorted(joined(first + second)) == list(range(1, 13))
    assert [add is not None for add in found.adders] == [True, True], "moments are those of all ranks"


def test_ranks_of_one_share_train_on_the_same_in_the_same_order(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["actor"]["global_batch_size"] = 4
    found = ranks(reasoning_data, new_queue, range(1, 9), range(1, 9), shares=(0, 0))
    found.train()
    first, second = (trainer.steps for trainer in found.trainers)
    assert first == second
    assert [len(step) for step in first] == [4, 4], "a share counts once"
    assert found.adders == [None, None], "what both have is not added"


def test_two_shares_of_one_rank_each_have_orders_of_their_own(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    found = ranks(reasoning_data, new_queue, range(1, 9), range(1, 9))
    found.train()
    first, second = (joined(trainer.steps) for trainer in found.trainers)
    assert sorted(first) == sorted(second)
    assert first != second


def test_recomputed_log_probabilities_stand_beside_those_of_the_rollout(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["algorithm"]["recompute_logprobs"] = True
    found = ranks(reasoning_data, new_queue, (1, 2, 3))
    found.train()
    for part in found.trainers[0].seen:
        t = part.trajectory
        assert t.logprob[t.mask].tolist() == [-0.5] * len(part)
        assert t.proximal[t.mask].tolist() == [-float(n) for n in t.context["input_ids"][:, 0]]


def test_a_critic_values_responses_from_the_first_iteration_on(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    found = ranks(reasoning_data, new_queue, (1, 2, 3), valued=True)
    for _ in range(2):
        found.actors[0]._trajectory = trajectory(1, 2, 3).map(torch.from_numpy)
        found.train()
    for part in found.trainers[0].seen:
        numbers = part.trajectory.context["input_ids"][:, 0].tolist()
        assert part.trajectory.value.tolist() == [[n, 0, 0] for n in numbers]


def test_a_rank_without_responses_ends_the_run(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    with pytest.raises(RLinfError, match=r"actor\[1\]: no responses for this rank: .* Raise data\.rollout_batch_size"):
        ranks(reasoning_data, new_queue, (1, 2), ())


def test_a_share_with_fewer_responses_than_steps_takes_them_all_the_same(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["actor"]["global_batch_size"] = 2
    found = ranks(reasoning_data, new_queue, range(1, 7), (7,))
    found.train()
    first, second = (trainer.steps for trainer in found.trainers)
    assert [len(step) for step in first] == [2, 2, 1, 1], "7 responses in steps of 2"
    assert second == [[7]] * 4
    assert [bool(part.trajectory.mask.any()) for part in found.trainers[1].seen] == [True, False, False, False]


def test_a_step_smaller_than_the_shares_is_refused(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    reasoning_data["actor"]["global_batch_size"] = 1
    with pytest.raises(ConfigError, match=r"actor\.global_batch_size: 1 responses .* 2 shares\. Use at least 2"):
        ranks(reasoning_data, new_queue, (1, 2), (3, 4))

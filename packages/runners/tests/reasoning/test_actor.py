"""The actor without a cluster, on a trainer that writes down what it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch

from rlinf.core.data import Credit, Rescored, Scores, Trajectory, Weights
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.metrics import Metric
from rlinf.core.registry import GATES
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.reasoning.actor_worker import ReasoningActor
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import ReasoningTopology

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=2, reward_ranks=1)
EVENTS: list[str] = []
SEEN: list[Scores[Any]] = []


class WritesDown:
    """Every log-probability is −1 over the temperature."""

    version = 0

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def evaluate(self, batch: Any) -> Rescored[Any]:
        EVENTS.append(f"evaluate {len(batch)}")
        return Rescored(logprob=torch.full(batch.trajectory.logprob.shape, -1.0) / self.policy.temperature)

    def step(self, micro_batches: Sequence[Any], loss: Any) -> dict[str, Any]:
        EVENTS.append(f"step {[len(part) for part in micro_batches]}")
        return {}

    def weights(self) -> Weights[Any]:
        return Weights(tensors={}, version=0)

    def all_reduce(self, value: Any) -> Any:
        return value


class Leaves(WritesDown):
    def offload(self, *parts: str) -> int:
        EVENTS.append("offload")
        return 0

    def onload(self, *parts: str) -> int:
        EVENTS.append(" ".join(["onload", *parts]))
        return 0

    def reference(self, batch: Any) -> Any:
        EVENTS.append(f"reference {len(batch)}")
        return torch.full(batch.trajectory.logprob.shape, -3.0)


@dataclass(frozen=True)
class Stays:
    def build(self, policy: Any, **ranks: Any) -> Any:
        return WritesDown(policy)


@dataclass(frozen=True)
class Able:
    max_tokens_per_mbs: int | None = None

    def keeping_reference(self) -> Any:
        return replace(self)

    def build(self, policy: Any, **ranks: Any) -> Any:
        return Leaves(policy)


@dataclass(frozen=True)
class ToyGate:
    tolerance: float
    allowed_share: float

    def measure(self, scores: Scores[Any]) -> dict[str, Any]:
        return {"counted": Metric(float(scores.mask.sum()))}

    def check(self, scores: Scores[Any], *, place: str) -> dict[str, Any]:
        SEEN.append(scores)
        return {}


@dataclass
class Lock:
    name: str = field(default="lock")

    def __enter__(self) -> None:
        EVENTS.append("lock")

    def __exit__(self, *exception: object) -> None:
        EVENTS.append("unlock")


@dataclass(frozen=True)
class ToySync:
    def send(self, comm: Any, weights: Any, group: str, ranks: Sequence[int]) -> None:
        EVENTS.append(f"send {group} {list(ranks)}")


GATES.register("toy_gate")(ToyGate)


def rows(version: int = 0) -> Trajectory[Any]:
    """A group of two, three and one tokens long, of which the rollout said −2."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    return Trajectory(
        context={"input_ids": torch.zeros(2, 3, dtype=torch.int64), "segment_ids": mask.long()},
        action=torch.zeros(2, 3, 1, 1, dtype=torch.int64),
        logprob=-2.0 * mask,
        reward=torch.zeros(2, 3),
        terminated=~mask,
        truncated=~mask,
        mask=mask,
        version=torch.full((2, 3), version),
        group=torch.zeros(2, dtype=torch.int64),
        task=torch.zeros(2, dtype=torch.int64),
    )


def actor(data: dict[str, Any], trainer: Any, *, version: int = 0, **changes: Any) -> Any:
    data["actor"] |= {"gate": "toy_gate", **changes}
    cfg = read_reasoning(data)

    def credit(trajectory: Any, *, all_reduce: Any = None) -> Credit[Any]:
        return Credit(advantage=torch.zeros_like(trajectory.reward))

    syncer = replace(cfg.actor.weight_syncer, sync=ToySync())
    cfg = replace(cfg, actor=replace(cfg.actor, trainer=trainer, weight_syncer=syncer))
    cfg = replace(cfg, algorithm=replace(cfg.algorithm, advantage=credit))
    with injected(WorkerContext(group="actor", device_lock=Lock())):
        worker = ReasoningActor(cfg)
    worker.init_worker(TOPOLOGY)
    worker._trajectory = rows(version)
    return worker


@pytest.fixture(autouse=True)
def forget() -> None:
    EVENTS.clear()
    SEEN.clear()


def test_a_gate_sees_all_tokens_and_may_ask_for_another_temperature(reasoning_data: dict[str, Any]) -> None:
    worker = actor(reasoning_data, Stays(), version=-1)
    metrics = worker.compute_advantages_and_returns()
    (scores,) = SEEN
    assert scores.mask.sum(1).tolist() == [3, 1], "also those of other weights, which must not be there yet"
    assert (scores.trainer_version, scores.version[scores.mask].tolist()) == (0, [-1] * 4)
    assert scores.trainer[scores.mask].tolist() == [-1.0] * 4
    assert scores.rescore is not None
    assert scores.rescore(0.5)[scores.mask].tolist() == [-2.0] * 4
    assert worker._state.policy.temperature == 1.0
    assert metrics["counted"].mean == 0, "no token is of the weights that the trainer has"
    worker._trajectory = rows(-1)
    worker.compute_advantages_and_returns()
    assert len(SEEN) == 1, "once"


def test_where_aborted_responses_go_on_older_tokens_do_not_count(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["rollout"]["oversample"] = 1.5
    worker = actor(reasoning_data, Stays(), version=-1)
    worker.compute_advantages_and_returns()
    assert not SEEN[0].mask.any()


def test_phases_lock_the_devices_and_leave_them(reasoning_data: dict[str, Any]) -> None:
    worker = actor(reasoning_data, Able(), offload=True)
    assert EVENTS == ["offload"]
    EVENTS.clear()
    worker.sync_model_to_rollout()
    assert EVENTS == ["onload parameters", "send rollout [0, 1]", "offload"]
    EVENTS.clear()
    worker.compute_advantages_and_returns()
    assert EVENTS == ["lock", "onload parameters", "evaluate 2", "offload", "unlock"]
    EVENTS.clear()
    worker.run_training(0)
    assert EVENTS == ["lock", "onload", "step [2]", "offload", "unlock"]


def test_a_trainer_that_stays_is_refused_where_it_must_leave(reasoning_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"actor\.offload: the trainer 'toy_trainer' can't leave its devices"):
        actor(reasoning_data, Stays(), offload=True)


def test_a_trainer_that_packs_gets_everything_at_once(reasoning_data: dict[str, Any]) -> None:
    for trainer, parts in ((Stays(), "[1, 1]"), (Able(max_tokens_per_mbs=3), "[2]")):
        worker = actor(reasoning_data, trainer, max_tokens_per_mbs=3)
        worker.compute_advantages_and_returns()
        worker.run_training(0)
        assert EVENTS[-1] == f"step {parts}"


def test_a_trainer_that_knows_the_reference_is_asked(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["reference"] = {"source": "initial"}
    worker = actor(reasoning_data, Able())
    worker.compute_advantages_and_returns()
    assert EVENTS == ["evaluate 2", "reference 2"]
    found = worker._batch.trajectory
    assert found.reference[found.mask].tolist() == [-3.0] * 4


class Squared:
    """An advantage that asks for Σ π², and writes down what it is given."""

    needs: ClassVar = {"sum_pi_squared": ""}

    def __init__(self) -> None:
        self.given: list[Trajectory[Any]] = []

    def __call__(self, trajectory: Any, *, all_reduce: Any = None) -> Credit[Any]:
        self.given.append(trajectory)
        return Credit(advantage=torch.zeros_like(trajectory.reward))


class Sums(WritesDown):
    """Σ π² of a row is a tenth of its length."""

    def evaluate(self, batch: Any) -> Rescored[Any]:
        mask = batch.trajectory.mask
        return replace(super().evaluate(batch), sum_pi_squared=mask * mask.sum(1, keepdim=True) / 10)


def test_an_advantage_gets_the_squared_probabilities_that_it_asks_for(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["algorithm"]["recompute_logprobs"] = True
    worker = actor(reasoning_data, Stays(), micro_batch_size=1)
    advantage = Squared()
    worker.cfg = replace(worker.cfg, algorithm=replace(worker.cfg.algorithm, advantage=advantage))
    with pytest.raises(RLinfError, match=r"actor\[0\]: the advantage needs Σ π².*Choose another algorithm\.adv_type"):
        worker.compute_advantages_and_returns()
    worker._state.rescorer._trainer = Sums(worker._state.policy)
    # Twice: the first iteration scores everything in any case.
    for _ in range(2):
        worker._trajectory = rows()
        worker.compute_advantages_and_returns()
        found = advantage.given.pop()
        torch.testing.assert_close(found.sum_pi_squared, torch.tensor([[0.3, 0.3, 0.3], [0.1, 0.0, 0.0]]))
        assert found.proximal[found.mask].tolist() == [-1.0] * 4, "of the same pass"


@pytest.mark.parametrize("filtering", [False, True])
def test_responses_that_the_limit_cut_off_are_credited_but_not_trained_on(reasoning_data: dict[str, Any], filtering: bool) -> None:
    reasoning_data["algorithm"]["overlong_filtering"] = filtering
    worker = actor(reasoning_data, Stays())
    seen: list[Any] = []

    def credit(trajectory: Any, *, all_reduce: Any = None) -> Credit[Any]:
        seen.append(trajectory)
        return Credit(advantage=torch.where(trajectory.mask, torch.tensor([[2.0], [1.0]]), 0.0))

    worker.cfg = replace(worker.cfg, algorithm=replace(worker.cfg.algorithm, advantage=credit))
    cut_off = torch.zeros(2, 3, dtype=torch.bool)
    cut_off[0, 2] = True
    worker._trajectory = replace(worker._trajectory, truncated=cut_off)
    metrics = worker.compute_advantages_and_returns()
    trained = [1, 1] if not filtering else [0, 1]
    assert seen[0].mask.sum(1).tolist() == [3, 1], "the group is compared as a whole"
    assert worker._batch.trajectory.mask.sum(1).tolist() == [3 * trained[0], 1]
    assert worker._batch.credit.advantage.sum(1).tolist() == [6.0 * trained[0], 1.0]
    assert metrics["advantages_abs"].mean == (7 / 4 if not filtering else 1.0)
    assert ("overlong_filtered" in metrics) == filtering
    if filtering:
        assert metrics["overlong_filtered"].mean == 0.5
    worker.run_training(0)
    assert EVENTS[-1] == "step [2]"

"""An embodied actor without a cluster, on a trainer that says what it is told to, and a gate that lets everything pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from rlinf.core.data import Credit, Rescored, Scores, Trajectory
from rlinf.core.metrics import Metric
from rlinf.core.registry import GATES
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.embodied.actor_worker import EmbodiedFSDPActor
from rlinf.runners.embodied.rules import read_embodied

SEEN: list[tuple[Any, Scores[Any]]] = []


@dataclass(frozen=True)
class SeesScores:
    tolerance: float
    allowed_share: float

    def measure(self, scores: Scores[Any]) -> dict[str, Any]:
        return {}

    def check(self, scores: Scores[Any], *, place: str) -> dict[str, Any]:
        SEEN.append((self, scores))
        return {"gap": Metric(1.0)}


GATES.register("sees_scores")(SeesScores)


@dataclass
class Tells:
    """A trainer of several ranks; a decision's log-probability is that of its number."""

    precision: str | None = None
    version: int = 3
    asked: list[int] = field(default_factory=list[int])

    def build(self, policy: Any, **ranks: Any) -> Any:
        return self

    def evaluate(self, batch: Any) -> Rescored[Any]:
        self.asked.append(len(batch))
        number = batch.trajectory.context["number"]
        return Rescored(logprob=number[..., None, None].expand(batch.trajectory.logprob.shape))

    def step(self, micro_batches: Sequence[Any], loss: Any) -> dict[str, Any]:
        return {"loss": Metric(1.0)}

    def all_reduce(self, value: Any) -> Any:
        return value


def rows(count: int, horizon: int = 3) -> Trajectory[Any]:
    """Rows of decisions of two control steps and two action dimensions; the last decision of each is padding."""
    mask = torch.arange(horizon).expand(count, horizon) < horizon - 1
    number = torch.arange(count * horizon, dtype=torch.float32).reshape(count, horizon)
    return Trajectory(
        context={"number": number},
        action=torch.zeros(count, horizon, 2, 2),
        logprob=number[..., None, None].expand(count, horizon, 2, 2) + 0.5,
        reward=torch.ones(count, horizon),
        terminated=~mask,
        truncated=~mask,
        mask=mask,
        version=torch.full((count, horizon), 3),
        group=torch.arange(count),
        task=torch.zeros(count, dtype=torch.int64),
    )


def actor(
    data: dict[str, Any],
    trainer: Any,
    trajectory: Trajectory[Any],
    advantage: float = 0.0,
    ranks: tuple[int, int] = (0, 1),
    **changes: Any,
) -> Any:
    data["actor"] |= {"gate": "sees_scores", **changes}
    cfg = read_embodied(data)

    def credit(trajectory: Any, *, all_reduce: Any = None) -> Credit[Any]:
        found = torch.zeros_like(trajectory.reward)
        found[0, 1] = advantage
        return Credit(advantage=found)

    cfg = replace(cfg, actor=replace(cfg.actor, trainer=trainer, model=replace(cfg.actor.model, config=_built)))
    cfg = replace(cfg, algorithm=replace(cfg.algorithm, advantage=credit))
    with injected(WorkerContext(group="actor", rank=ranks[0], world_size=ranks[1])):
        worker: Any = EmbodiedFSDPActor(cfg)
    topology: Any = SimpleNamespace(spec=object())
    worker.init_worker(topology)
    worker._trajectory = trajectory
    return worker


def _built(spec: Any, *, seed: int) -> Any:
    return SimpleNamespace(predict_action_batch=print, weights=print, load=print)

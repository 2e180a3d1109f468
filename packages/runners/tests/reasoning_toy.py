"""Jobs, channels and what a toy rollout writes, for tests of workers without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from rlinf.core.errors import DeadlineExceeded
from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.rollout import Generated
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=2, rollout="rollout", rollout_ranks=1, reward_ranks=1)


def job(*groups: int, needed: int | None = None, again: tuple[int, ...] = (), shown: int = 1) -> JobSpec:
    prompt_groups = tuple(PromptGroup(group=g, problem=g % 6, again=g in again) for g in groups)
    return JobSpec(
        key="train/0/0",
        split="train",
        prompt_groups=prompt_groups,
        needed=len(groups) if needed is None else needed,
        samples=2,
        sampling=SamplingConfig(max_new_tokens=8),
        shown=shown,
    )


def job_of(key: str, prompt_groups: Sequence[PromptGroup], needed: int, *, longest: int = 8, split: Any = "train") -> JobSpec:
    sampling = SamplingConfig(max_new_tokens=longest)
    return JobSpec(key=key, split=split, prompt_groups=tuple(prompt_groups), needed=needed, samples=2, sampling=sampling, shown=0)


def fresh(count: int) -> list[PromptGroup]:
    return [PromptGroup(group=g, problem=g % 6) for g in range(count)]


class Call:
    """Ends when `ready` says so: with a value, or with an error."""

    def __init__(self, label: str, outcome: Any, ready: Callable[[], bool] = lambda: True) -> None:
        self.label, self.outcome, self.ready = label, outcome, ready

    def done(self) -> bool:
        return self.ready()

    def wait(self, timeout: float | None = None) -> Any:
        if not self.ready():
            raise DeadlineExceeded(self.label, "not done")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def channels(new_queue: Any) -> Channels:
    return Channels(**{field.name: new_queue() for field in fields(Channels)})


def written(data: dict[str, Any], task: JobSpec, between: Channels) -> tuple[Generated, ReasoningRolloutWorker]:
    worker = ReasoningRolloutWorker(read_reasoning(data))
    worker.init_worker(TOPOLOGY)
    return asyncio.run(worker.generate(task, between)), worker

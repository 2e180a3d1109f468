"""A toy task, tokenizer, generator and reward, so that this part is tested without the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rlinf.core.data import Completion, Weights
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator
from rlinf.core.registry import GENERATORS, MODELS, REWARDS, TASKS, WEIGHT_SYNCS

LETTERS = "_.abcdefgh"


@dataclass(frozen=True)
class ToyTask:
    count: int = 6

    def check(self, place: str) -> None: ...

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(prompt=LETTERS[2 + i], answer=LETTERS[2 + i], id=i) for i in range(self.count)]


class ToyTokenizer:
    pad_token_id, eos_token_id = 0, 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [LETTERS.index(c) for c in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(LETTERS[t] for t in token_ids if t > 1 or not skip_special_tokens)


class ToyPolicy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.temperature, self.version = torch.nn.Linear(1, 1), 1.0, 0

    def weights(self) -> Weights[Any]:
        return Weights(tensors=dict(self.state_dict()), version=self.version)

    def load(self, weights: Weights[Any]) -> None:
        self.version = weights.version

    def network_weights(self, weights: Weights[Any]) -> Any:
        return weights.tensors

    def save_network(self, folder: Any) -> None: ...


@dataclass(frozen=True)
class ToyWriter:
    temperature: float = 1.0
    precision: str | None = None

    ends: tuple[int, ...] = ()

    def end_tokens(self) -> tuple[int, ...]:
        return self.ends

    def build(self, *, seed: int) -> ToyPolicy:
        policy = ToyPolicy()
        policy.temperature = self.temperature
        return policy.bfloat16() if self.precision == "bf16" else policy

    def tokenizer(self, corpus: Sequence[str]) -> ToyTokenizer:
        return ToyTokenizer()


class ToyGenerator:
    """Writes as many letters as its seed says, at temperature 0 as many as it may, one in each turn of the loop."""

    def __init__(self) -> None:
        self.version = 0
        self.aborted: set[str] = set()
        self.written: dict[str | None, int] = {}
        self.in_flight = 0

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingConfig, *, seed: int, request_id: str | None = None, partial: Any = None
    ) -> Completion[Any]:
        random = keyed_generator(seed, "toy")
        length = int(random.integers(1, sampling.max_new_tokens + 1)) if sampling.temperature else sampling.max_new_tokens
        tokens = [*random.integers(2, len(LETTERS), length - 1).tolist(), 1]
        versions = [] if partial is None else partial.version.tolist()
        self.written[request_id] = len(versions)
        self.aborted.discard(request_id or "")
        self.in_flight += 1
        while len(versions) < length and request_id not in self.aborted:
            await asyncio.sleep(0)
            versions.append(self.version)
        self.in_flight -= 1
        count = len(versions)
        return Completion(
            tokens=np.array(tokens[:count]),
            logprob=np.full(count, -1.0, np.float32),
            version=np.array(versions, np.int64),
            finish="stop" if count == length else "abort",
        )

    def abort(self, request_ids: Collection[str] | None = None) -> None:
        self.aborted |= set(request_ids or ())

    async def load(self, weights: Weights[Any]) -> None:
        self.version = weights.version

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ToyGeneratorConfig:
    pace: int = 1

    def check(self, place: str) -> None: ...

    def build(self, policy: Any, *, rank: int, world_size: int) -> ToyGenerator:
        return ToyGenerator()


@dataclass(frozen=True)
class ToyReward:
    """How many letters there are."""

    scale: float = 1.0

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        return [self.scale * len(text) for text in completions]


@dataclass(frozen=True)
class ToyCastingSync:
    """Casts what it sends."""

    cast: bool = False

    def casting(self) -> ToyCastingSync:
        return ToyCastingSync(cast=True)


TASKS.register("toy_task")(ToyTask)
MODELS.register("toy_writer")(ToyWriter)
GENERATORS.register("toy_generator")(ToyGeneratorConfig)
REWARDS.register("toy_reward")(ToyReward)
WEIGHT_SYNCS.register("toy_casting_sync")(ToyCastingSync)


class Queue:
    """A channel in one thread."""

    def __init__(self) -> None:
        self.items: dict[Any, list[Any]] = {}

    def put(self, item: Any, *, key: Any = "default", async_op: bool = False) -> Any:
        self.items.setdefault(key, []).append(item)
        done: asyncio.Future[None] | None = None
        if async_op:
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
        return done

    def get(self, *, key: Any = "default") -> Any:
        return self.items[key].pop(0)


@pytest.fixture
def new_queue() -> type[Queue]:
    """The class of channels that need no cluster."""
    return Queue


@pytest.fixture
def reasoning_data() -> dict[str, Any]:
    """A whole configuration made of toys."""
    return {
        "runner": {"task_type": "reasoning", "experiment_name": "toy", "max_steps": 2, "seed": 3},
        "data": {"type": "toy_task", "count": 6, "rollout_batch_size": 4, "val_problems": 4},
        "rollout": {"rollout_backend": "toy_generator", "pace": 2, "group_size": 2, "sampling_params": {"max_new_tokens": 8}},
        "reward": {"reward_type": "toy_reward", "scale": 0.5},
        "actor": {
            "training_backend": "toy_trainer",
            "model": {"model_type": "toy_writer"},
            "weight_syncer": {"type": "toy_sync"},
            "global_batch_size": 8,
        },
        "algorithm": {"adv_type": "toy_advantage", "loss_type": "toy_loss"},
    }

"""A toy environment and a toy model, so that this part is tested without the others."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, Decision, EnvSpec
from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.errors import ChannelEmpty
from rlinf.core.registry import ADVANTAGES, ENVS, GATES, LOSSES, MODELS, TRAINERS, WEIGHT_SYNCS
from rlinf.runners.embodied.topology import Reply

# A background job ignores Ctrl-C, and the programs that it starts do, too; here some are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests share toys, which are a module beside them.
sys.path.append(str(Path(__file__).parent))
BOUND = np.ones(1, np.float32)


class CountdownEnv:
    """Each environment terminates `seed % 5 + 1` steps after its reset; the observation is the steps left."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_envs: int, max_episode_steps: int) -> None:
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.action_space = SimpleNamespace(shape=(num_envs, 1))
        self.left = np.zeros(num_envs, int)
        self.length = np.zeros(num_envs, int)
        self.ret = np.zeros(num_envs, np.float32)
        self.seeds_seen: list[int] = []
        self.recorded: list[str] = []
        self.tasks: Any = None
        self.broken: tuple[int, int, float] | None = None
        self.steps = 0
        self.closed = False

    @property
    def unwrapped(self) -> CountdownEnv:
        return self

    def _obs(self) -> dict[str, Any]:
        return {"states": self.left[:, None].astype(np.float32)}

    def reset(self, *, seed: list[int], options: dict[str, Any]) -> tuple[Any, Any]:
        assert not self.closed
        mask = options["reset_mask"]
        self.left[mask] = np.asarray(seed)[mask] % 5 + 1
        self.length[mask] = 0
        self.ret[mask] = 0
        self.seeds_seen += [s for s, m in zip(seed, mask, strict=True) if m]
        if "record" in options:
            self.recorded.append(options["record"])
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        active = np.ones(self.num_envs, bool)
        if isinstance(action, MaskedActions):
            action, active = action.actions, action.active
        assert (np.abs(action) <= 1).all()
        assert (self.left[active] > 0).all(), "stepped after the end"
        self.left[active] -= 1
        self.length[active] += 1
        reward = np.ones(self.num_envs, np.float32)
        self.steps += 1
        if self.broken is not None and self.steps == self.broken[1]:
            reward[self.broken[0]] = self.broken[2]
        self.ret[active] += 1
        terminated, truncated = self.left == 0, self.length == self.limit
        episode = {
            "success_once": terminated.copy(),
            "success_at_end": terminated.copy(),
            "return": self.ret.copy(),
            "episode_len": self.length.copy(),
        }
        if self.tasks is not None:
            episode["task"] = self.tasks
        return self._obs(), reward, terminated, truncated, {"episode": episode, "_episode": terminated | truncated}

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@dataclass(frozen=True)
class Countdown:
    made: ClassVar[type[CountdownEnv]] = CountdownEnv
    level: int = 1

    def check(self, place: str) -> None: ...

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        return CountdownEnv(num_envs, max_episode_steps or 100)

    def describe(self, env: Any) -> EnvSpec:
        return EnvSpec(
            observation={"states": ArraySpec(shape=(1,), dtype="float32")},
            action=ArraySpec(shape=(1,), dtype="float32", low=-BOUND, high=BOUND),
            max_episode_steps=env.limit,
        )


class DriftingEnv(CountdownEnv):
    """Says from which seed an episode started and how many steps it has had; episodes of odd environments are longer."""

    def _obs(self) -> dict[str, Any]:
        return {"states": np.stack([self.left, self.start, self.length], axis=1).astype(np.float32)}

    def reset(self, *, seed: list[int], options: dict[str, Any]) -> tuple[Any, Any]:
        mask = options["reset_mask"]
        self.start = np.where(mask, np.asarray(seed) % 2**24, getattr(self, "start", 0))
        super().reset(seed=seed, options=options)
        self.left[mask] += (np.arange(self.num_envs) % 2 * 2)[mask]
        return self._obs(), {}


@dataclass(frozen=True)
class DriftingCountdown(Countdown):
    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        return DriftingEnv(num_envs, max_episode_steps or 100)

    def describe(self, env: Any) -> EnvSpec:
        return dataclasses.replace(Countdown.describe(self, env), observation={"states": ArraySpec(shape=(3,), dtype="float32")})


@dataclass(frozen=True)
class ToyModel:
    width: int = 4


@dataclass(frozen=True)
class ToyTrainer:
    lr: float = 0.1


@dataclass(frozen=True)
class ToyAdvantage:
    gamma: float = 0.99


@dataclass(frozen=True)
class ToyLoss:
    clip_ratio_low: float = 0.2


@dataclass(frozen=True)
class ToySync:
    pass


@dataclass(frozen=True)
class ToyGate:
    tolerance: float = 1e-3
    allowed_share: float = 0.0


if "step_zero" not in GATES.names():  # the default, which comes with rlinf-engines
    GATES.register("step_zero")(ToyGate)
ENVS.register("countdown")(Countdown)
ENVS.register("drifting")(DriftingCountdown)
MODELS.register("toy_model")(ToyModel)
TRAINERS.register("toy_trainer")(ToyTrainer)
ADVANTAGES.register("toy_advantage")(ToyAdvantage)
LOSSES.register("toy_loss")(ToyLoss)
WEIGHT_SYNCS.register("toy_sync")(ToySync)


class Queues:
    """A channel in one thread; what is requested is answered at once by `policy`."""

    name = "queues"

    def __init__(self, reply: Any = None) -> None:
        self.items: dict[Any, deque[Any]] = {}
        self.reply = reply

    def put(self, item: Any, *, key: Any = "default", weight: int = 0) -> None:
        if self.reply is not None:
            self.reply(item)
        self.items.setdefault(key, deque()).append(item)

    def get(self, *, key: Any = "default", timeout: float | None = None) -> Any:
        return self.items[key].popleft()

    def get_nowait(self, *, key: Any = "default") -> Any:
        if not self.items.get(key):
            raise ChannelEmpty("queues", "nothing is there")
        return self.get(key=key)

    def get_batch(self, target_weight: int, *, key: Any = "default", timeout: float | None = None) -> list[Any]:
        return [self.get(key=key)]

    def qsize(self, *, key: Any = "default") -> int:
        return len(self.items.get(key, ()))


@pytest.fixture
def queues() -> type[Queues]:
    """The class of channels that need no cluster."""
    return Queues


@pytest.fixture
def channels() -> tuple[Queues, Queues]:
    """Requests and answers; the value of an observation is 10 times what it shows."""
    answers = Queues()

    def reply(request: Any) -> None:
        if request.obs is not None:
            obs = request.obs["states"]
            rows = len(obs)
            decision = Decision(
                action=np.full((rows, 1, 1), 3.0, np.float32),
                logprob=np.zeros(rows, np.float32),
                value=10 * obs[:, 0],
                context={"states": obs},
                version=7,
            )
            answers.put(Reply(slot=request.slot, decision=decision), key=request.env_rank)

    return Queues(reply), answers


@pytest.fixture
def toy_data() -> dict[str, Any]:
    """A whole configuration made of toys."""
    return {
        "runner": {"experiment_name": "toy", "max_steps": 2, "seed": 3},
        "env": {
            "train": {
                "env_type": "countdown",
                "total_num_envs": 4,
                "max_steps_per_rollout_epoch": 6,
                "init_params": {"level": 2},
            },
            "eval": {"total_num_envs": 4, "episodes": 8},
        },
        "actor": {
            "training_backend": "toy_trainer",
            "model": {"model_type": "toy_model", "width": 8},
            "weight_syncer": {"type": "toy_sync"},
            "global_batch_size": 12,
            "lr": 0.5,
        },
        "algorithm": {
            "adv_type": "toy_advantage",
            "loss_type": "toy_loss",
            "gamma": 0.9,
            "clip_ratio_low": 0.1,
        },
    }

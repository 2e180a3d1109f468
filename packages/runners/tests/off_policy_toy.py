"""Off-policy toys: an algorithm, a trainer that keeps what it is given, a policy with Q-functions, and demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from rlinf.core.data import ArraySpec, Decision, EnvSpec, Trajectory
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric
from rlinf.core.registry import DATASETS, MODELS, OBJECTIVES, TRAINERS
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.off_policy.rules import read_off_policy


@dataclass(frozen=True)
class ToyObjective:
    judges: ClassVar[str] = "q_functions"
    tau: float = 0.1


@dataclass(frozen=True)
class ToyValues(ToyObjective):
    judges: ClassVar[str] = "action_values"


@dataclass(frozen=True)
class ToyNormalized(ToyObjective):
    judges: ClassVar[str] = "batch_normalized_q_functions"


@dataclass(frozen=True)
class Adds(ToyObjective):
    """Explores by adding how many decisions there were, and a number of its own."""

    def explored(self, action: Any, spec: ArraySpec, *, decisions: int, generator: Any) -> Any:
        return action + decisions + torch.rand((), generator=generator)


@dataclass
class Sees:
    """A trainer that keeps what it is given."""

    version: int = 0
    seen: list[Any] = field(default_factory=list[Any])

    def update(self, micro_batches: Sequence[Any]) -> Mapping[str, Any]:
        self.seen.append(micro_batches)
        self.version += 1
        return {"critic_loss": Metric(1.0)}

    def save(self, folder: Path) -> None:
        (folder / "trainer").touch()

    def load(self, folder: Path) -> None:
        assert (folder / "trainer").exists()


@dataclass(frozen=True)
class SeesConfig:
    def check_off_policy(self) -> None: ...

    def build_off_policy(self, policy: Any, objective: Any, spec: Any, **given: Any) -> Sees:
        return Sees()


@dataclass(frozen=True)
class Refines(ToyObjective):
    """One of policies that change what another one proposes."""

    reference_dropout: float = 0.5


@dataclass(frozen=True)
class WithQ:
    heads: int = 2
    latent: bool = False
    reference: bool = False

    @property
    def traits(self) -> PolicyTraits:
        q_functions = self.heads > 0
        return PolicyTraits(q_functions=q_functions, recurrent=False, latent_action=self.latent, reference_action=self.reference)

    def build(self, spec: Any, *, seed: int) -> Any:
        return Chooses() if self.latent else Learns()


@dataclass(frozen=True)
class WithFeatures(WithQ):
    """Keeps the square of what was seen, and how often somebody acted."""

    def kept_observation(self, spec: Any) -> Any:
        return {"square": ArraySpec(shape=(1,), dtype="float32"), "acted": ArraySpec(shape=(2,), dtype="float32")}

    def build(self, spec: Any, *, seed: int) -> Any:
        return Squares()


class Learns(nn.Linear):
    """A policy that nobody asks for anything but its parameters."""

    predict_action_batch = weights = load = print

    def __init__(self) -> None:
        super().__init__(1, 1)


class Squares(Learns):
    """Learns from features."""

    def feature_parameters(self) -> list[str]:
        return []

    def replay_features(self, rows: Any) -> Any:
        states = np.asarray(rows.observation["states"])
        return {"square": states**2, "acted": np.repeat(states, 2, axis=-1)}


class Chooses(Learns):
    """What it chose are two numbers that its context has in place of the state."""

    def latent_action(self, context: Any) -> Any:
        state = torch.as_tensor(context["states"])
        return torch.stack([state, -state], dim=-1)


class Constant(nn.Module):
    """Decides one number in training and another in evaluations."""

    version = 4

    def __init__(self, train: float = 0.0, evaluated: float = 0.0) -> None:
        super().__init__()
        self.decided = {"train": train, "eval": evaluated}

    def predict_action_batch(self, env_obs: Any, mode: str = "train", *, generator: Any = None) -> Decision[Any]:
        rows = len(env_obs["states"])
        action = torch.full((rows, 1, 1), self.decided[mode])
        return Decision(action=action, logprob=torch.zeros(rows), context={}, version=self.version)


SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(1,), dtype="float32")},
    action=ArraySpec(shape=(1,), dtype="float32"),
    max_episode_steps=9,
)
FIRST = 1000.0
"""From which on an observation is one of a demonstration."""


@dataclass(frozen=True)
class Recorded:
    """Four episodes of five steps: observation t of episode n is 1000 + 100 n + t."""

    width: int = 1
    key: str = "states"

    name = "somewhere"
    features = ("observation.state", "action")
    lacks = ()

    def check(self, place: str) -> None: ...

    def open(self) -> Any:
        return self

    def __len__(self) -> int:
        return 4

    @property
    def spec(self) -> EnvSpec:
        return replace(SPEC, observation={self.key: ArraySpec(shape=(self.width,), dtype="float32")})

    def episodes(self) -> Iterator[OfflineEpisode]:
        for number in range(4):
            yield OfflineEpisode(
                number=number,
                observation={self.key: (FIRST + 100 * number + np.arange(6.0))[:, None]},
                action=np.zeros((5, 1), np.float32),
                reward=np.ones(5, np.float32),
                terminated=np.zeros(5, bool),
                truncated=np.arange(5) == 4,
            )


def played_buffer(steps: int = 10, reward: float = 0.0, **options: Any) -> ReplayBuffer:
    """A buffer with an episode whose observations are 0, 1, 2, …"""
    buffer = ReplayBuffer(capacity=40, **options)
    rows = Trajectory.of(
        context={},
        action=np.zeros((1, steps, 1, 1), np.float32),
        logprob=np.zeros((1, steps), np.float32),
        reward=np.full((1, steps), reward, np.float32),
        episode=np.array([0]),
        observation={"states": np.arange(steps + 1, dtype=np.float32)[None, :, None]},
    )
    buffer.add(rows, np.array([0]))
    return buffer


OBJECTIVES.register("toy_objective")(ToyObjective)
OBJECTIVES.register("toy_values")(ToyValues)
TRAINERS.register("toy_sees")(SeesConfig)
MODELS.register("toy_q")(WithQ)
DATASETS.register("toy_recorded")(Recorded)


def expect_refusal(data: dict[str, Any], section: str, changes: dict[str, Any], said: str) -> None:
    """A configuration with changes in a section is refused in such words."""
    data[section] |= changes
    with pytest.raises(ConfigError) as refused:
        read_off_policy(data)
    assert said in str(refused.value)

"""The configuration of an off-policy run; YAML holds only what a run changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from rlinf.core.config import expect_range
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineConfig
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import KeepsFeatures, Objective
from rlinf.core.registry import DATASETS, OBJECTIVES
from rlinf.core.replay import Sampling, bytes_of_slot
from rlinf.runners.checkpoints.run_folder import run_folder
from rlinf.runners.config.schema import chosen, not_negative, positive
from rlinf.runners.embodied.schema import PlayedConfig

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBufferConfig:
    """`algorithm.replay_buffer`: the last transitions, over all actors."""

    capacity: int = 100_000
    """How many transitions are kept; each environment has the same share, of which the oldest are overwritten. The final
    observation of an episode takes the place of one, as no other is kept twice."""
    max_gib: float | None = None
    """GiB that they may take at most, in memory and on the disk together, which lowers `capacity` where a transition is large; null
    for any."""
    n_step: int = 1
    """Over how many decisions a transition goes at most: its reward is their discounted sum, and what follows them counts γᵏ. Where
    an episode ends earlier it ends there, a truncated one with the value of its final observation."""
    sampling: Sampling = field(default_factory=Sampling)
    """Which transitions are drawn, and what each then counts."""
    storage: Literal["memory", "disk"] = "memory"
    """Where observations are kept: "memory", or "disk" for more than fit into it, in the folder of the run, where all of their
    place is taken at once. Both are gone when the run ends; checkpoints have a copy."""
    min_buffer_size: int | None = None
    """How many transitions there must be before the first update; null: `algorithm.start_steps`, at least one batch."""

    def __post_init__(self) -> None:
        expect_range("max_gib", self.max_gib, 0.0, 1e6, open_low=True)
        positive(capacity=self.capacity, n_step=self.n_step, min_buffer_size=self.min_buffer_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoBufferConfig:
    """`algorithm.demo_buffer`: demonstrations, of which a share of every batch is drawn (RLPD); it also holds a dataset's fields.

    Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), alg. 1, arXiv:2302.02948.
    """

    type: str = "lerobot"
    """A registered dataset of episodes."""
    dataset: OfflineConfig = field(metadata=chosen(DATASETS, "type", trains=True))
    """The dataset's own fields."""
    fraction: float | None = 0.5
    """The share of a batch that is drawn from it, rounded down to whole transitions; the rest is drawn from the replay buffer.
    null: each transition of either is as likely as any other, as in one buffer that begins with the dataset (IQL, AWAC)."""

    def __post_init__(self) -> None:
        expect_range("fraction", self.fraction, 0.0, 1.0, open_low=True, open_high=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyAlgorithmConfig:
    """`algorithm`; its section also holds the fields of the objective."""

    loss_type: str = "sac"
    """A registered off-policy objective."""
    objective: Objective = field(metadata=chosen(OBJECTIVES, "loss_type", trains=True))
    """Its own fields."""
    gamma: float = 0.99
    """Discount of one decision."""
    utd: float = 1.0
    """Updates for each decision that is collected (update-to-data ratio), from the first one on that `replay_buffer` allows."""
    start_steps: int = 0
    """Decisions at the start of the run that are drawn uniformly within the bounds of actions, rounded up to a whole iteration."""
    replay_buffer: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    demo_buffer: DemoBufferConfig | None = None
    """Demonstrations beside what the run collects; null for none."""
    offline_steps: int = 0
    """Iterations at the start of the run that learn from `demo_buffer` alone, while nothing is played; as many as
    `runner.max_steps` for a run that is offline from start to end."""
    offline_updates: int = 1000
    """Updates in each of these iterations."""

    def __post_init__(self) -> None:
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("utd", self.utd, 0.0, 1e4)
        not_negative(start_steps=self.start_steps, offline_steps=self.offline_steps)
        positive(offline_updates=self.offline_updates)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig(PlayedConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    keeps_observations: ClassVar[bool] = True
    """A replay buffer needs what was seen, final observations too."""
    algorithm: OffPolicyAlgorithmConfig

    def plays(self, step: int) -> bool:
        return step >= self.algorithm.offline_steps

    def unparted(self, ranks: int) -> Iterator[ConfigError]:
        """Also of a batch, of demonstrations, and of what critics compute over a batch."""
        yield from PlayedConfig.unparted(self, ranks)
        config, batch = self.algorithm, self.actor.global_batch_size
        if batch % ranks:
            problem = f"{batch} transitions can't be parted over {ranks} actors"
            yield ConfigError("actor.global_batch_size", problem, f"Use a multiple of {ranks}.")
        if ranks > 1 and config.objective.judges == "batch_normalized_q_functions":
            problem = f"critics of '{config.loss_type}' normalise by a whole batch, which {ranks} actors share"
            yield ConfigError("cluster.component_placement.actor", problem, "Place one actor.")
        episodes = ranks if ranks == 1 or config.demo_buffer is None else len(config.demo_buffer.dataset.open())
        if episodes < ranks:
            problem = f"{episodes} episodes can't be parted over {ranks} actors, each of which learns from its own"
            yield ConfigError("algorithm.demo_buffer", problem, "Record more, or place fewer actors.")

    @property
    def min_transitions(self) -> int:
        """How many transitions there must be before the first update."""
        named = self.algorithm.replay_buffer.min_buffer_size
        return max(self.algorithm.start_steps, self.actor.global_batch_size) if named is None else named

    @property
    def optimizer_steps(self) -> int:
        """Updates of the whole run, over which schedules span."""
        return sum(self.updates(step) for step in range(self.runner.max_steps))

    def updates(self, step: int) -> int:
        """Updates in iteration `step`, counted from 0: by what was collected, so that a run that resumes makes the same ones."""
        if not self.plays(step):
            return self.algorithm.offline_updates
        step, made = step - self.algorithm.offline_steps, self.decisions_per_iteration
        if (step + 1) * made < self.min_transitions:
            return 0
        # By totals, so that parts of an update add up over iterations.
        return math.floor((step + 1) * made * self.algorithm.utd) - math.floor(step * made * self.algorithm.utd)

    def transition_bytes(self, spec: EnvSpec) -> int:
        """What a transition takes in the replay buffer."""
        return self._slot_bytes(spec, prioritized=self.algorithm.replay_buffer.sampling.type == "prioritized")

    def demonstrated_bytes(self, spec: EnvSpec) -> int:
        """What a transition takes that is drawn uniformly, and never lies on the disk: a recorded one, or one that people made."""
        return self._slot_bytes(spec, prioritized=False)

    def kept_observation(self, spec: EnvSpec) -> Mapping[str, ArraySpec]:
        """What the replay buffer keeps of each observation."""
        model: object = self.actor.model.config
        return model.kept_observation(spec) if isinstance(model, KeepsFeatures) else spec.observation

    def _slot_bytes(self, spec: EnvSpec, *, prioritized: bool) -> int:
        chunk = traits_of(self.actor.model.config).chunk or 1
        return bytes_of_slot(self.kept_observation(spec), spec.action, chunk=chunk, prioritized=prioritized)

    @property
    def replay_folder(self) -> Path | None:
        """Where observations are kept; None: in memory."""
        if self.algorithm.replay_buffer.storage == "memory":
            return None
        return run_folder(self).path / "replay"

    def capacity(self, spec: EnvSpec) -> int:
        """How many transitions are kept over all actors.

        Raises:
            ConfigError: `max_gib` leaves no room for two of each environment, or for those that the first update needs.
        """
        config, size = self.algorithm.replay_buffer, self.transition_bytes(spec)
        fit = config.capacity if config.max_gib is None else min(config.capacity, int(config.max_gib * GIB / size))
        needed = max(2 * self.env.train.total_num_envs, self.min_transitions)
        if fit < needed:
            problem = f"{config.max_gib:g} GiB hold {fit:,} transitions of {size:,} bytes, and the run needs {needed:,}"
            raise ConfigError("algorithm.replay_buffer.max_gib", problem, f"Use at least {needed * size / GIB:.3g}.")
        return fit

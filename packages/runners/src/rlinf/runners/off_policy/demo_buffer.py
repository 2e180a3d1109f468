"""Recorded episodes beside the replay buffer, from which a share of every batch is drawn, or the whole of it.

    batch = ⌊fraction · B⌋ demonstrations + the rest from the replay buffer

Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), alg. 1, arXiv:2302.02948. Without a fraction both
are drawn from as if they were one, as in Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021),
sec. 5.2, arXiv:2110.06169. While nothing was played, all of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import KnowsLengths
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric, Statistic
from rlinf.core.random import keyed_generator
from rlinf.core.replay import RecordedTransitions, ReplayBuffer, Transitions
from rlinf.runners.embodied_sft.demonstrations import TEXTS
from rlinf.runners.embodied_sft.fitting import other_shapes
from rlinf.runners.off_policy.drawing import Drawing
from rlinf.runners.off_policy.schema import OffPolicyConfig

PLACE: Final = "algorithm.demo_buffer"
_ROUNDING: Final = 1e-9
"""0.29 · 100 is a little less than 29."""


@dataclass(frozen=True, slots=True)
class DemoBuffer:
    """The share of one actor in the demonstrations of a run."""

    recorded: RecordedTransitions
    fraction: float | None
    """Of a batch; None for that of all transitions there are."""
    seed: int
    """Of the run."""
    rank: int
    interventions: ReplayBuffer | None = None
    """What people do in place of the policy, which counts as demonstrated, too; None where nobody can."""

    @staticmethod
    def of(
        cfg: OffPolicyConfig, spec: EnvSpec, *, rank: int, world_size: int, interventions: ReplayBuffer | None = None
    ) -> DemoBuffer | None:
        """Reads every `world_size`-th episode, from number `rank` on; None where a run has no demonstrations.

        Raises:
            ConfigError: there is nothing to learn from, or it does not fit into memory.
        """
        config = cfg.algorithm.demo_buffer
        if config is None:
            return None
        source = config.dataset.open()
        recorded = RecordedTransitions(
            islice(source.episodes(), rank, None, world_size),
            spec,
            chunk=traits_of(cfg.actor.model.config).chunk or 1,
            n_step=cfg.algorithm.replay_buffer.n_step,
            gamma=cfg.algorithm.gamma,
            bootstrap_truncated=cfg.bootstraps_truncated,
            place=PLACE,
            name=source.name,
        )
        return DemoBuffer(recorded, config.fraction, cfg.runner.seed, rank, interventions)

    def batch(self, online: ReplayBuffer | Drawing, size: int, update: int) -> Transitions[NDArray[Any]]:
        """`size` transitions, those of the replay buffer first.

        Args:
            online: the replay buffer.
            size: of the batch.
            update: its number. What is drawn follows from it, so that a checkpoint need not keep a generator.
        """
        generator = keyed_generator(self.seed, "demonstrations", self.rank, update)
        demonstrated = self._demonstrated(len(online), size, generator)
        if not demonstrated:
            return online.sample(size)
        others = len(self.interventions) if self.interventions is not None else 0
        # As if both were one buffer: each transition of either is as likely as any other.
        acted = int(generator.binomial(demonstrated, others / (others + len(self.recorded)))) if others else 0
        parts = [online.sample(size - demonstrated)] if demonstrated < size else []
        parts += [self.recorded.sample(demonstrated - acted, generator)] if acted < demonstrated else []
        parts += [self.interventions.sample(acted)] if self.interventions is not None and acted else []
        return parts[0] if len(parts) == 1 else Transitions.concat(parts)

    def described(self) -> Mapping[str, Statistic]:
        """How much there is, and what those who acted in it achieved; the same in every iteration."""
        recorded = self.recorded
        returns = Metric(recorded.mean_return * recorded.episodes, float(recorded.episodes))
        told: dict[str, Statistic] = {"demo_buffer/size": Metric(float(len(recorded))), "demo_buffer/return": returns}
        if self.interventions is not None:
            told["demo_buffer/interventions"] = Metric(float(len(self.interventions)))
        return told

    def _demonstrated(self, online: int, size: int, generator: np.random.Generator) -> int:
        """How many of `size` transitions are demonstrations, beside a replay buffer of `online`."""
        if not online:
            return size
        if self.fraction is None:
            return int(generator.binomial(size, len(self.recorded) / (len(self.recorded) + online)))
        return int(self.fraction * size + _ROUNDING)


def recorded_slots(cfg: OffPolicyConfig) -> int:
    """Slots that the demonstrations of all actors take, by what describes them; 0 without any, or where only reading them tells."""
    source = None if cfg.algorithm.demo_buffer is None else cfg.algorithm.demo_buffer.dataset.open()
    if not isinstance(source, KnowsLengths):
        return 0
    chunk = traits_of(cfg.actor.model.config).chunk or 1
    # What was seen last takes a slot of its own behind the decisions of an episode, of which the last may be cut short.
    return sum(-(-length // chunk) + 1 for length in source.episode_lengths())


def unfit_demonstrations(cfg: OffPolicyConfig, spec: EnvSpec) -> Iterator[ConfigError]:
    """What of the demonstrations does not fit the environment, by what describes both."""
    if cfg.algorithm.demo_buffer is None:
        return
    source = cfg.algorithm.demo_buffer.dataset.open()
    if source.lacks:
        problem = f"'{source.name}' records no {' and no '.join(source.lacks)}, which it takes to tell good actions from bad ones"
        yield ConfigError(PLACE, problem, "Record it, or imitate: apps/embodied/sft.py needs neither.")
    ours, theirs = f"'{source.name}'", f"env.train.env_type '{cfg.env.train.env_type}'"
    yield from other_shapes(source, PLACE, theirs, spec, any_size=False)
    for key in spec.observation:
        if key != TEXTS and key not in source.spec.observation:
            problem = f"{theirs} shows '{key}', and {ours} has {', '.join(sorted(source.spec.observation))}"
            yield ConfigError(f"{PLACE}.keys", problem, f"Name the feature; its features are {', '.join(source.features)}.")

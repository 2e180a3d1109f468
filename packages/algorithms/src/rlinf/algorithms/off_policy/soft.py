"""What soft actor-critics have in common, however they learn their critics: the actor, the temperature, and when each is due."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Aggregate
from rlinf.algorithms.objectives.sac import (
    initial_temperature,
    redq_subset,
    sac_actor_loss,
    sac_target,
    temperature,
    temperature_loss,
)
from rlinf.algorithms.objectives.targets import update_due
from rlinf.algorithms.off_policy.settings import CriticSettings, apart
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import LossOutput
from rlinf.core.off_policy import HasQDropout, Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor

ALPHA = "alpha"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftActorCritic(CriticSettings, ABC):
    """An actor that climbs Q − α log π, with a temperature α that is learned; a subclass says what the critics learn.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), alg. 1, arXiv:1812.05905. An update is a step of the
    critics, one of the actor on the critics after theirs, and one of the temperature.
    """

    actor_agg_q: Aggregate = "min"
    """How critics become the value that the actor climbs."""
    backup_entropy: bool = True
    """Whether the entropy of what follows belongs to the value."""
    critic_actor_ratio: int = 1
    """Updates of the critics for one of the actor and of the temperature."""
    auto_entropy_tuning: bool = True
    """Whether the temperature is learned, so that the entropy stays at `target_entropy`."""
    initial_alpha: float = 1.0
    """The temperature at the start, or always."""
    alpha_type: Literal["exp", "softplus"] = "exp"
    """How the learned number becomes a temperature."""
    target_entropy: float | None = None
    """In nats; null is minus the numbers of a decision, K · A."""

    def __post_init__(self) -> None:
        CriticSettings.__post_init__(self)
        expect_at_least("critic_actor_ratio", self.critic_actor_ratio, 1)
        expect_range("initial_alpha", self.initial_alpha, 0.0, 1e6, open_low=self.auto_entropy_tuning)
        expect_range("target_entropy", self.target_entropy, -1e4, 1e4)

    def parameters(self) -> Mapping[str, float]:
        """The number that becomes the temperature, if it is learned."""
        if not self.auto_entropy_tuning:
            return {}
        return {ALPHA: initial_temperature(self.initial_alpha, parametrisation=self.alpha_type)}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return apart(policy)

    def due(self, update: int) -> Sequence[str]:
        """The critic always, the others every `critic_actor_ratio` updates."""
        if not update_due(update, every=self.critic_actor_ratio):
            return ("critic",)
        return ("critic", "actor", ALPHA) if self.auto_entropy_tuning else ("critic", "actor")

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        if part == "critic":
            return self.critic_loss(learner, batch, generator)
        if part == "actor":
            action, logprob = learner.policy.sample_action(batch.observation, generator=generator)
            learner.shared[ALPHA, id(batch)] = logprob.detach()
            q = q_values(learner.policy, batch.observation, action, generator)
            return sac_actor_loss(logprob, q, alpha=self.alpha(learner), aggregate=self.actor_agg_q)
        # The actions that the actor has learned from, as in the paper's algorithm; to draw others takes a pass through the actor.
        logprob = learner.shared.get((ALPHA, id(batch)))
        if logprob is None:
            with torch.no_grad():
                _, logprob = learner.policy.sample_action(batch.observation, generator=generator)
        target = -float(batch.action[0].numel()) if self.target_entropy is None else self.target_entropy
        return temperature_loss(self.alpha(learner), logprob, target_entropy=target)

    @abstractmethod
    def critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        """What the critics minimise."""

    def target_value(
        self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None, *, subsample: int | None = None
    ) -> Tensor:
        """`[B]`, what target critics say should be learned, of a fresh action; no gradient.

        Args:
            learner: policy and target.
            batch: transitions.
            generator: the source of the action, and of the critics that are asked.
            subsample: how many of them; None for all.
        """
        with torch.no_grad():
            action, logprob = learner.policy.sample_action(batch.observation_next, generator=generator)
            q_next = q_values(learner.target, batch.observation_next, action, generator)
            asked = None if subsample is None else redq_subset(q_next.shape[1], subsample, generator or torch.default_generator)
            return sac_target(
                batch.reward,
                batch.terminated,
                q_next,
                logprob,
                gamma=batch.discount,
                alpha=self.alpha(learner),
                aggregate=self.agg_q,
                subset=asked,
                backup_entropy=self.backup_entropy,
                bootstrap=self.bootstrap_type,
            )

    def alpha(self, learner: Learner) -> Tensor:
        """The temperature, differentiable if it is learned."""
        if not self.auto_entropy_tuning:
            return torch.tensor(self.initial_alpha)
        return temperature(learner.parameters[ALPHA], parametrisation=self.alpha_type)


def q_values(policy: Any, observation: Any, action: Tensor, generator: torch.Generator | None) -> Tensor:
    """`[B, N]`, what critics say in training: with dropout, where they have it."""
    if _drops(policy.__class__):
        return policy.dropped_q_values(observation, action, generator=generator)
    return policy.q_values(observation, action)


@functools.cache
def _drops(kind: type) -> bool:
    # Of the class and once: to look for the methods of a protocol takes as long as a pass through small critics.
    return issubclass(kind, HasQDropout)

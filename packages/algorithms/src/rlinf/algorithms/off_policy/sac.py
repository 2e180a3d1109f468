"""Soft actor-critic by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlinf.algorithms.objectives.critic import Bootstrap
from rlinf.algorithms.objectives.rows import Aggregate
from rlinf.algorithms.objectives.sac import (
    initial_temperature,
    redq_subset,
    sac_actor_loss,
    sac_critic_loss,
    sac_target,
    temperature,
    temperature_loss,
)
from rlinf.algorithms.objectives.targets import update_due
from rlinf.algorithms.off_policy.settings import apart, check_targets, moved
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.off_policy import Judges, Learner
from rlinf.core.replay import Transitions

ALPHA = "alpha"


@dataclass(frozen=True, slots=True, kw_only=True)
class SAC:
    """Soft actor-critic: `algorithm.loss_type: sac`.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), alg. 1, arXiv:1812.05905. An update is a step of the
    critics, one of the actor on the critics after theirs, one of the temperature, and one of the target weights.
    """

    agg_q: Aggregate = "min"
    """How target critics become one value."""
    actor_agg_q: Aggregate = "min"
    """How critics become the value that the actor climbs."""
    critic_subsample_size: int | None = None
    """How many target critics, drawn anew for each update, are asked; null for all. With `actor.model.num_q_heads: 10`, 2 of them
    and `actor_agg_q: mean` this is REDQ."""
    backup_entropy: bool = True
    """Whether the entropy of what follows belongs to the value."""
    bootstrap_type: Bootstrap = "standard"
    """"standard" ends with a terminated episode; "always" counts what follows, too, for tasks that go on after success."""
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
    tau: float = 0.005
    """How far target weights go towards the weights."""
    target_update_freq: int = 1
    """Updates from one such move to the next."""
    huber_delta: float | None = None
    """Beyond which error the critics' loss is linear; null for the square alone."""

    def __post_init__(self) -> None:
        check_targets(self.tau, self.target_update_freq)
        expect_range("critic_actor_ratio", self.critic_actor_ratio, 1)
        expect_range("critic_subsample_size", self.critic_subsample_size, 1)
        expect_range("initial_alpha", self.initial_alpha, 0.0, 1e6, open_low=self.auto_entropy_tuning)
        expect_range("target_entropy", self.target_entropy, -1e4, 1e4)
        expect_range("huber_delta", self.huber_delta, 0.0, open_low=True)

    @property
    def judges(self) -> Judges:
        """Q-functions."""
        return "q_functions"

    def parameters(self) -> Mapping[str, float]:
        """The number that becomes the temperature, if it is learned."""
        if not self.auto_entropy_tuning:
            return {}
        return {ALPHA: initial_temperature(self.initial_alpha, parametrisation=self.alpha_type)}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        """The critic, and the actor."""
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
            return self._critic_loss(learner, batch, generator)
        if part == "actor":
            action, logprob = learner.policy.sample_action(batch.observation, generator=generator)
            q = learner.policy.q_values(batch.observation, action)
            return sac_actor_loss(logprob, q, alpha=self._alpha(learner), aggregate=self.actor_agg_q)
        with torch.no_grad():
            action, logprob = learner.policy.sample_action(batch.observation, generator=generator)
        target = -float(action[0].numel()) if self.target_entropy is None else self.target_entropy
        return temperature_loss(self._alpha(learner), logprob, target_entropy=target)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ, every `target_update_freq` updates."""
        return moved(target, online, update, tau=self.tau, every=self.target_update_freq)

    def _critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        with torch.no_grad():
            action, logprob = learner.policy.sample_action(batch.observation_next, generator=generator)
            q_next = learner.target.q_values(batch.observation_next, action)
            target = sac_target(
                batch.reward,
                batch.terminated,
                q_next,
                logprob,
                gamma=batch.discount,
                alpha=self._alpha(learner),
                aggregate=self.agg_q,
                subset=self._subset(q_next.shape[1], generator),
                backup_entropy=self.backup_entropy,
                bootstrap=self.bootstrap_type,
            )
        q = learner.policy.q_values(batch.observation, batch.action)
        return sac_critic_loss(q, target, huber_delta=self.huber_delta)

    def _subset(self, critics: int, generator: torch.Generator | None) -> Tensor | None:
        if self.critic_subsample_size is None:
            return None
        return redq_subset(critics, self.critic_subsample_size, generator or torch.default_generator)

    def _alpha(self, learner: Learner) -> Tensor:
        """The temperature, differentiable if it is learned."""
        if not self.auto_entropy_tuning:
            return torch.tensor(self.initial_alpha)
        return temperature(learner.parameters[ALPHA], parametrisation=self.alpha_type)

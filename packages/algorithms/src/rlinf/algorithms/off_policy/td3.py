"""Twin delayed deep deterministic policy gradient by name, alone and beside what another policy proposes (RLT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import critic_loss
from rlinf.algorithms.objectives.targets import update_due
from rlinf.algorithms.objectives.td3 import (
    linear_weight,
    reference_dropout,
    smoothed_action,
    td3_actor_loss,
    td3_bc_actor_loss,
    td3_target,
)
from rlinf.algorithms.off_policy.settings import TargetCriticSettings, apart, half_range, moved
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import ArraySpec, LossOutput
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinDelayed(TargetCriticSettings):
    """What algorithms with a deterministic actor have in common: all but what that one minimises.

    Noise is in units of half the range of each action. The policy's own noise is not used: it acts by what it takes for best.
    """

    exploration_noise: float = 0.1
    """σ of the Gaussian noise that is added to each action of training."""
    target_noise: float = 0.2
    """σ of the noise on the target's action."""
    noise_clip: float = 0.5
    """The largest noise on the target's action, in either direction; larger draws are cut to it."""
    critic_actor_ratio: int = 2
    """Updates of the critics for one of the actor and of the target weights."""

    def __post_init__(self) -> None:
        TargetCriticSettings.__post_init__(self)
        for name in ("exploration_noise", "target_noise", "noise_clip"):
            expect_range(name, getattr(self, name), 0.0, 10.0)
        expect_at_least("critic_actor_ratio", self.critic_actor_ratio, 1)

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return apart(policy)

    def due(self, update: int) -> Sequence[str]:
        """The critic always, the actor every `critic_actor_ratio` updates."""
        return ("critic", "actor") if update_due(update, every=self.critic_actor_ratio) else ("critic",)

    def critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        """How far the critics are from what target actor and target critics say."""
        with torch.no_grad():
            q_next = learner.target.q_values(batch.observation_next, self._target_action(learner, batch, generator))
            target = td3_target(
                batch.reward,
                batch.terminated,
                q_next,
                gamma=batch.discount,
                aggregate=self.agg_q,
                bootstrap=self.bootstrap_type,
            )
        q = learner.policy.q_values(batch.observation, batch.action)
        return critic_loss(q, target, huber_delta=self.huber_delta, weight=batch.weight)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ, whenever the actor was updated."""
        return moved(target, online, update, tau=self.tau, every=self.critic_actor_ratio)

    def explored(self, action: Tensor, spec: ArraySpec, *, decisions: int, generator: torch.Generator | None) -> Tensor:
        """A + σ r ε within the bounds, ε ~ N(0, 1) and r half the range of each action."""
        center, radius = half_range(spec, action)
        noise = torch.randn(action.shape, generator=generator, dtype=action.dtype, device=action.device)
        noisy = action + self.exploration_noise * radius * noise
        return noisy.clamp(center - radius, center + radius)

    def _target_action(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> Tensor:
        action = learner.target.most_likely_action(batch.observation_next)
        center, radius = half_range(learner.action, action)
        unit = (action - center) / radius
        smooth = smoothed_action(unit, std=self.target_noise, noise_clip=self.noise_clip, low=-1.0, high=1.0, generator=generator)
        return center + radius * smooth


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3(TwinDelayed):
    """Twin delayed deep deterministic policy gradient: `algorithm.loss_type: td3`.

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), alg. 1, arXiv:1802.09477.
    `actor.model.distribution: tanh_gaussian` keeps actions within the bounds.
    """

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        if part == "critic":
            return self.critic_loss(learner, batch, generator)
        action = learner.policy.most_likely_action(batch.observation)
        return td3_actor_loss(learner.policy.q_values(batch.observation, action))


@dataclass(frozen=True, slots=True, kw_only=True)
class RLTTD3(TwinDelayed):
    """An actor that changes what a frozen policy proposes, and is kept near to it: `algorithm.loss_type: rlt_td3`.

    L = −w_Q Q₁(s, μ(s, m ã)) + w_BC (μ(s, m ã) − a*)²,   m ~ Bernoulli(1 − p)

    Xu et al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (2026), arXiv:2604.23073: ã is the proposal,
    a* the same, or what was done where a human intervened. Critics learn as those of TD3. The squares are those of units of half
    the range of each action, averaged over the chunk.
    """

    reference_dropout: float = 0.5
    """p, the share of transitions in which the actor is not told the proposal, so that it does not only copy it."""
    q_weight: float = 1.0
    """w_Q, how much the critics count for the actor."""
    bc_weight: float = 1.0
    """w_BC at the start, how much it counts to stay near."""
    final_bc_weight: float | None = None
    """w_BC at the end of `bc_weight_updates`; null: it stays as it is."""
    bc_weight_updates: int = 1000
    """Updates over which w_BC goes from one to the other, as a line."""

    def __post_init__(self) -> None:
        TwinDelayed.__post_init__(self)
        expect_range("reference_dropout", self.reference_dropout, 0.0, 1.0)
        for name in ("q_weight", "bc_weight", "final_bc_weight"):
            expect_range(name, getattr(self, name), 0.0, 1e6)
        expect_at_least("bc_weight_updates", self.bc_weight_updates, 1)

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        if part == "critic":
            return self.critic_loss(learner, batch, generator)
        policy, seen = learner.policy, batch.observation
        hidden = reference_dropout(batch.reward, prob=self.reference_dropout, generator=generator)
        action, wanted = policy.most_likely_action(policy.without_reference(seen, hidden)), policy.imitated_action(seen)
        center, radius = half_range(learner.action, action)
        return td3_bc_actor_loss(
            policy.q_values(seen, action),
            (action - center) / radius,
            (wanted - center) / radius,
            scale=self.q_weight,
            # The version counts the updates before this one.
            bc_weight=linear_weight(
                policy.version, initial=self.bc_weight, final=self.final_bc_weight, updates=self.bc_weight_updates
            ),
        )

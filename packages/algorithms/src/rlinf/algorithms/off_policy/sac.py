"""Soft actor-critic by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.objectives.critic import critic_loss
from rlinf.algorithms.off_policy.settings import check_targets, moved
from rlinf.algorithms.off_policy.soft import SoftActorCritic, q_values
from rlinf.core.config import expect_at_least
from rlinf.core.data import LossOutput
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SAC(SoftActorCritic):
    """Soft actor-critic: `algorithm.loss_type: sac`.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), alg. 1, arXiv:1812.05905. Critics learn from target
    critics, which follow them. With `actor.model.q_dropout` all of them drop units whenever they are asked in training, as in
    Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (2021), alg. 2, arXiv:2110.02034.
    """

    critic_subsample_size: int | None = None
    """How many target critics, drawn anew for each update, make a target; null for all. With `actor.model.num_q_heads: 10`, 2 of
    them and `actor_agg_q: mean` this is REDQ."""
    tau: float = 0.005
    """How far target weights go towards the weights."""
    target_update_freq: int = 1
    """Updates from one such move to the next."""

    def __post_init__(self) -> None:
        SoftActorCritic.__post_init__(self)
        check_targets(self.tau, self.target_update_freq)
        expect_at_least("critic_subsample_size", self.critic_subsample_size, 1)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ, every `target_update_freq` updates."""
        return moved(target, online, update, tau=self.tau, every=self.target_update_freq)

    def critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        target = self.target_value(learner, batch, generator, subsample=self.critic_subsample_size)
        q = q_values(learner.policy, batch.observation, batch.action, generator)
        return critic_loss(q, target, huber_delta=self.huber_delta, weight=batch.weight)

"""Implicit Q-learning by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import critic_loss, td_target
from rlinf.algorithms.objectives.iql import iql_actor_loss, iql_value_loss
from rlinf.algorithms.off_policy.settings import TargetCriticSettings, parts_of
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.declarations import Need
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class IQL(TargetCriticSettings):
    """Implicit Q-learning, which never asks what an action outside the data is worth: `algorithm.loss_type: iql`.

    Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021), alg. 1, arXiv:2110.06169. An update is a
    step of the value function on the target critics, one of the critics on the value function, one of the actor on both, and one
    of the target weights; the order is that of the authors' implementation.
    """

    expectile: float = 0.7
    """τ, which quantile-like part of the actions of the data a state is valued by: 0.5 the mean, towards 1 the best."""
    beta: float = 3.0
    """β, an inverse temperature in 1 / units of value: how much more the better actions are imitated; 0 is behaviour cloning."""
    max_weight: float = 100.0
    """The most that an action is imitated."""

    def __post_init__(self) -> None:
        TargetCriticSettings.__post_init__(self)
        expect_range("expectile", self.expectile, 0.0, 1.0, open_low=True, open_high=True)
        expect_range("beta", self.beta, 0.0, 1e4)
        expect_range("max_weight", self.max_weight, 0.0, 1e9, open_low=True)

    @property
    def needs(self) -> Mapping[Need, str]:
        return {"value": ""}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return parts_of(policy, value=True)

    def due(self, update: int) -> Sequence[str]:
        return ("value", "critic", "actor")

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        policy, seen = learner.policy, batch.observation
        if part == "critic":
            with torch.no_grad():
                value_next = policy.state_value(batch.observation_next)
            target = td_target(batch.reward, batch.terminated, value_next, gamma=batch.discount, bootstrap=self.bootstrap_type)
            q = policy.q_values(seen, batch.action)
            return critic_loss(q, target, huber_delta=self.huber_delta, weight=batch.weight)
        with torch.no_grad():
            q = learner.target.q_values(seen, batch.action)
        if part == "value":
            value = policy.state_value(seen)
            return iql_value_loss(value, q, expectile=self.expectile, aggregate=self.agg_q, weight=batch.weight)
        with torch.no_grad():
            value = policy.state_value(seen)
        logprob = policy.action_logprob(seen, batch.action)
        return iql_actor_loss(logprob, value, q, beta=self.beta, max_weight=self.max_weight, aggregate=self.agg_q)

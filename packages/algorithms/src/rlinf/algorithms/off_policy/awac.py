"""Advantage-weighted actor-critic by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.awr import awr_weights, weighted_bc_loss
from rlinf.algorithms.objectives.critic import aggregate_q, critic_loss, td_target
from rlinf.algorithms.off_policy.settings import TargetCriticSettings, parts_of
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import LossOutput
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions, within_bounds

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AWAC(TargetCriticSettings):
    """Advantage-weighted actor-critic, for data first and a simulator afterwards: `algorithm.loss_type: awac`.

    w = min(exp((Q(s, a) − V(s)) / λ), c),   V(s) the mean of Q over fresh actions of the policy

    Nair et al., "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (2020), eq. 12 and 13, arXiv:2006.09359;
    Z is left out, as there, and the clip c is that of later implementations. Actions of the policy beyond the bounds of the
    environment are judged at them, as they are executed.
    """

    temperature: float = 1.0
    """λ, in units of value: towards 0 only the best actions are imitated, a large one is behaviour cloning."""
    max_weight: float = 100.0
    """The most that an action is imitated."""
    value_samples: int = 1
    """Fresh actions for each value of a state."""

    def __post_init__(self) -> None:
        TargetCriticSettings.__post_init__(self)
        expect_range("temperature", self.temperature, 0.0, 1e6, open_low=True)
        expect_range("max_weight", self.max_weight, 0.0, 1e9, open_low=True)
        expect_at_least("value_samples", self.value_samples, 1)

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return parts_of(policy, value=False)

    def due(self, update: int) -> Sequence[str]:
        return ("critic", "actor")

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        policy, seen = learner.policy, batch.observation
        if part == "critic":
            with torch.no_grad():
                value_next = self._value(policy, learner.target, learner, batch.observation_next, generator)
                target = td_target(batch.reward, batch.terminated, value_next, gamma=batch.discount, bootstrap=self.bootstrap_type)
            q = policy.q_values(seen, batch.action)
            return critic_loss(q, target, huber_delta=self.huber_delta, weight=batch.weight)
        with torch.no_grad():
            q = aggregate_q(policy.q_values(seen, batch.action), aggregate=self.agg_q)
            advantage = q - self._value(policy, policy, learner, seen, generator)
        factor = awr_weights(advantage, beta=1.0 / self.temperature, max_weight=self.max_weight)
        # The weights of prioritised replay are for critics; see `Transitions.weight`.
        return weighted_bc_loss(policy.action_logprob(seen, batch.action), factor)

    def _value(self, policy: Any, judge: Any, learner: Learner, seen: Any, generator: torch.Generator | None) -> Tensor:
        """`[B]`, what `judge` says of fresh actions of the policy, on average."""
        found: list[Tensor] = []
        for _ in range(self.value_samples):
            action, _ = policy.sample_action(seen, generator=generator)
            found.append(aggregate_q(judge.q_values(seen, within_bounds(action, learner.action)), aggregate=self.agg_q))
        return torch.stack(found).mean(0)

"""Conservative Q-learning by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.cql import cql_alpha_loss, cql_critic_loss, cql_penalty, uniform_log_density
from rlinf.algorithms.objectives.sac import initial_temperature, temperature
from rlinf.algorithms.off_policy.settings import check_targets, half_range, moved
from rlinf.algorithms.off_policy.soft import SoftActorCritic, q_values
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.data.tree import tree_map
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT = "cql_alpha"


@dataclass(frozen=True, slots=True, kw_only=True)
class CQL(SoftActorCritic):
    """Conservative Q-learning, soft actor-critic for recorded data: `algorithm.loss_type: cql`.

    Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (2020), alg. 1 with the variant of eq. 4,
    arXiv:2006.04779. Beside learning from target critics, critics learn to value what the data does no higher than what else could
    have been done: half of those actions are drawn evenly within the bounds of the environment, half from the policy (app. F).
    """

    cql_alpha: float = 5.0
    """The weight of the conservative term, compared with ½ δ² of each critic; with `cql_gap`, its initial value."""
    cql_gap: float | None = None
    """How much higher than the data's other actions may be valued, in units of value: `cql_alpha` is learned, so that it is that
    (eq. 30). null keeps it fixed."""
    cql_samples: int = 10
    """Actions drawn evenly, and as many from the policy."""
    cql_temperature: float = 1.0
    """How soft the maximum over actions is: towards 0 the best one alone counts."""
    backup_entropy: bool = False
    """Whether the entropy of what follows belongs to the value."""
    tau: float = 0.005
    """How far target weights go towards the weights."""

    def __post_init__(self) -> None:
        SoftActorCritic.__post_init__(self)
        check_targets(self.tau)
        expect_range("cql_alpha", self.cql_alpha, 0.0, 1e6, open_low=self.cql_gap is not None)
        expect_range("cql_gap", self.cql_gap, 0.0, 1e6)
        expect_range("cql_samples", self.cql_samples, 1, 10_000)
        expect_range("cql_temperature", self.cql_temperature, 0.0, 1e6, open_low=True)

    def parameters(self) -> Mapping[str, float]:
        """The numbers that become the temperature and the weight of the penalty, where they are learned."""
        learned = SoftActorCritic.parameters(self)
        return learned if self.cql_gap is None else {**learned, WEIGHT: initial_temperature(self.cql_alpha)}

    def due(self, update: int) -> Sequence[str]:
        """The weight of the penalty whenever the critic is due, after it."""
        due = SoftActorCritic.due(self, update)
        return due if self.cql_gap is None else ("critic", WEIGHT, *due[1:])

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ after every update."""
        return moved(target, online, update, tau=self.tau, every=1)

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        if part != WEIGHT:
            return SoftActorCritic.loss(self, part, learner, batch, generator=generator)
        with torch.no_grad():
            q = q_values(learner.policy, batch.observation, batch.action, generator)
            penalty = self._penalty(learner, batch, q, generator)
        return cql_alpha_loss(temperature(learner.parameters[WEIGHT]), penalty, gap=self.cql_gap or 0.0, weight=batch.weight)

    def critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        target = self.target_value(learner, batch, generator)
        q = q_values(learner.policy, batch.observation, batch.action, generator)
        return cql_critic_loss(
            q,
            target,
            self._penalty(learner, batch, q, generator),
            alpha=self.cql_alpha if self.cql_gap is None else temperature(learner.parameters[WEIGHT]),
            gap=self.cql_gap or 0.0,
            huber_delta=self.huber_delta,
            weight=batch.weight,
        )

    def _penalty(self, learner: Learner, batch: Transitions[Tensor], q: Tensor, generator: torch.Generator | None) -> Tensor:
        """`[B, N]`, over `cql_samples` even actions and as many of the policy, in each state of the batch."""
        rows, each = batch.reward.shape[0], self.cql_samples
        # The samples of a state follow one another, as `reshape(rows, each, …)` reads them below.
        seen: Any = tree_map(lambda x: x.repeat_interleave(each, 0), batch.observation)
        with torch.no_grad():
            own, logprob = learner.policy.sample_action(seen, generator=generator)
            center, radius = half_range(learner.action, own)
            low, high = center - radius, center + radius
            even = low + (high - low) * torch.rand(own.shape, generator=generator, dtype=own.dtype, device=own.device)
            # The K steps of a chunk are drawn one by one, so that their log-densities add up.
            density = (own.shape[1] * uniform_log_density(low, high)).expand(rows, each)
        q_even = q_values(learner.policy, seen, even, generator).reshape(rows, each, -1)
        q_own = q_values(learner.policy, seen, own, generator).reshape(rows, each, -1)
        return cql_penalty(
            q,
            torch.cat([q_even, q_own], 1),
            torch.cat([density, logprob.reshape(rows, each)], 1),
            temperature=self.cql_temperature,
            weight=batch.weight,
        )

"""Q-learning with a deep network by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap
from rlinf.algorithms.objectives.discrete import double_q_target, q_learning_loss
from rlinf.algorithms.off_policy.settings import check_targets, learned, moved
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import ArraySpec, LossOutput
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Judges, Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DQN:
    """Deep Q-learning of numbered actions: `algorithm.loss_type: dqn`.

    Mnih et al., "Human-Level Control through Deep Reinforcement Learning" (2015), alg. 1, doi:10.1038/nature14236; the action of
    the target chosen by the weights that learn, as in van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning"
    (2016), eq. 4, arXiv:1509.06461.
    """

    double_q: bool = True
    """Whether the weights that learn choose the action of the target, which target weights judge; false lets these choose, too."""
    initial_epsilon: float = 1.0
    """The share of random actions at the start of training."""
    final_epsilon: float = 0.05
    """The share of random actions that is reached after `epsilon_steps`, and stays."""
    epsilon_steps: int = 10_000
    """Decisions of training over which it falls as a line."""
    bootstrap_type: Bootstrap = "standard"
    """"standard" ends with a terminated episode; "always" also counts what would have followed."""
    tau: float = 1.0
    """How far target weights go towards the weights: 1 takes them over."""
    target_update_freq: int = 250
    """Updates from one such move to the next."""
    huber_delta: float | None = 1.0
    """Beyond which error the loss is linear; null for the square alone."""

    def __post_init__(self) -> None:
        check_targets(self.tau, self.target_update_freq)
        expect_range("initial_epsilon", self.initial_epsilon, 0.0, 1.0)
        expect_range("final_epsilon", self.final_epsilon, 0.0, 1.0)
        expect_at_least("epsilon_steps", self.epsilon_steps, 1)
        expect_range("huber_delta", self.huber_delta, 0.0, open_low=True)
        if self.final_epsilon > self.initial_epsilon:
            raise ConfigError(
                "final_epsilon", f"expected at most initial_epsilon = {self.initial_epsilon:g}, found {self.final_epsilon:g}"
            )

    @property
    def judges(self) -> Judges:
        return "action_values"

    def parameters(self) -> Mapping[str, float]:
        return {}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        """One part: the whole policy judges, but for what is frozen."""
        return {"critic": learned(policy)}

    def due(self, update: int) -> Sequence[str]:
        return ("critic",)

    def loss(
        self, part: str, learner: Learner, batch: Transitions[Tensor], *, generator: torch.Generator | None
    ) -> LossOutput[Tensor]:
        with torch.no_grad():
            judged = learner.target.action_values(batch.observation_next)
            selector = learner.policy.action_values(batch.observation_next) if self.double_q else judged
            target = double_q_target(
                batch.reward, batch.terminated, judged, selector, gamma=batch.discount, bootstrap=self.bootstrap_type
            )
        q = learner.policy.action_values(batch.observation)
        # The numbers of actions may begin elsewhere than at 0; values are by place.
        chosen = batch.action.reshape(len(batch)) - _least(learner.action)
        return q_learning_loss(q, chosen, target, huber_delta=self.huber_delta, weight=batch.weight)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ, every `target_update_freq` updates."""
        return moved(target, online, update, tau=self.tau, every=self.target_update_freq)

    def epsilon(self, decisions: int) -> float:
        """The share of random actions after so many decisions of training."""
        done = min(1.0, decisions / self.epsilon_steps)
        return self.initial_epsilon + done * (self.final_epsilon - self.initial_epsilon)

    def explored(self, action: Tensor, spec: ArraySpec, *, decisions: int, generator: torch.Generator | None) -> Tensor:
        """The action, or with probability ε any other or the same, each as likely."""
        low, high = _least(spec), int(torch.as_tensor(spec.high))
        drawn = torch.randint(low, high + 1, action.shape, generator=generator, dtype=action.dtype, device=action.device)
        chance = torch.rand(action.shape, generator=generator, device=action.device)
        return torch.where(chance < self.epsilon(decisions), drawn, action)


def _least(spec: ArraySpec) -> int:
    return int(torch.as_tensor(spec.low))

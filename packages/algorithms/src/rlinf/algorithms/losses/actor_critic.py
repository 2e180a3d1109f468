"""The loss of an actor and its critic together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlinf.algorithms.losses.entropy import entropy_terms
from rlinf.algorithms.losses.ppo import check_clip, ppo_clip_terms
from rlinf.algorithms.losses.terms import Terms, summed
from rlinf.algorithms.losses.value import value_terms
from rlinf.algorithms.shapes import expect_range
from rlinf.core.data import Evaluation, LossOutput
from rlinf.core.errors import ShapeError
from rlinf.core.trajectory import Batch


@dataclass(frozen=True, slots=True)
class ActorCritic:
    """PPO's whole loss by name: `algorithm.loss_type: actor_critic`.

    L = L_clip + c_V L_V − c_H H

    Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 9, arXiv:1707.06347. All three count decisions, so
    one weight divides them all.
    """

    clip_ratio_low: float = 0.2
    """How far the ratio may fall below 1."""
    clip_ratio_high: float = 0.2
    """How far the ratio may rise above 1."""
    clip_ratio_c: float | None = None
    """The bound c > 1 of the dual clip; None for none."""
    value_clip: float | None = None
    """How far a value may move, in units of value; None for any distance."""
    huber_delta: float | None = None
    """Where the critic's loss turns from square to linear, in units of value; None for never."""
    value_loss_coef: float = 0.5
    """c_V, the weight of the critic's loss."""
    entropy_bonus: float = 0.0
    """c_H, the weight of the entropy."""

    def __post_init__(self) -> None:
        check_clip(self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c)
        infinity = float("inf")
        expect_range("value_clip", self.value_clip, 0.0, infinity, open_low=True)
        expect_range("huber_delta", self.huber_delta, 0.0, infinity, open_low=True)
        expect_range("value_loss_coef", self.value_loss_coef, 0.0, infinity)
        expect_range("entropy_bonus", self.entropy_bonus, 0.0, infinity)

    def __call__(self, batch: Batch[Tensor], evaluation: Evaluation[Tensor]) -> LossOutput[Tensor]:
        """The sum over unmasked decisions and their number.

        Args:
            batch: decisions with values, advantages and targets, `[B, T]`.
            evaluation: what the current weights say of them, with values, and with entropies if there is a bonus for them.

        Raises:
            ShapeError: something that the loss needs is None; the message names it.
        """
        t, credit = batch.trajectory, batch.credit
        clip = (self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c)
        actor = ppo_clip_terms(evaluation.logprob, t.logprob, credit.advantage, t.mask, clip)
        old = _present("trajectory.value", t.value)[:, :-1]
        value = _present("evaluation.value", evaluation.value)
        target = _present("credit.target", credit.target)
        critic = value_terms(value, old, target, t.mask, self.value_clip, self.huber_delta)
        loss = actor.loss + self.value_loss_coef * critic.loss
        observed = {**actor.observed, **critic.observed}
        if self.entropy_bonus or evaluation.entropy is not None:
            bonus = entropy_terms(_present("evaluation.entropy", evaluation.entropy), t.mask)
            observed.update(bonus.observed)
            loss = loss + self.entropy_bonus * bonus.loss if self.entropy_bonus else loss
        return summed(Terms(loss, observed, critic.ratios), t.mask)


def _present(name: str, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ShapeError(f"ActorCritic({name})", "expected a tensor, found None", "Use a policy and an advantage with a critic.")
    return tensor

"""The loss of an actor and its critic together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlinf.algorithms.losses.clip import ClippedLoss
from rlinf.algorithms.losses.inputs import LossInputs
from rlinf.algorithms.losses.ppo import ppo_clip_terms
from rlinf.algorithms.losses.terms import Terms
from rlinf.algorithms.losses.value import check_critic, critic_terms
from rlinf.core.declarations import Need


@dataclass(frozen=True, slots=True)
class ActorCritic(ClippedLoss):
    """PPO's whole loss by name: `algorithm.loss_type: actor_critic`.

    L = L_clip + c_V L_V − c_H H

    Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 9, arXiv:1707.06347. All three count decisions, so
    one weight divides them all.
    """

    by_rows: ClassVar[bool] = True

    value_clip: float | None = None
    """How far a value may move, in units of value; None for any distance."""
    huber_delta: float | None = None
    """Where the critic's loss turns from square to linear, in units of value; None for never."""
    value_loss_coef: float = 0.5
    """c_V, the weight of the critic's loss."""

    def __post_init__(self) -> None:
        ClippedLoss.__post_init__(self)
        check_critic(self.value_clip, self.huber_delta, self.value_loss_coef)

    def own_needs(self) -> Mapping[Need, str]:
        """A critic, and what it should learn."""
        return {"value": "", "target": ""}

    def policy_terms(self, x: LossInputs) -> Terms:
        """The surrogate of each decision."""
        logprob, old, advantage = (x.need(name, by="ActorCritic") for name in ("logprob", "logprob_old", "advantage"))
        return ppo_clip_terms(logprob, old, advantage, x.mask, self.bounds())

    def other_terms(self, x: LossInputs) -> list[Terms]:
        """The critic's loss of each decision."""
        clip, delta, coef = self.value_clip, self.huber_delta, self.value_loss_coef
        return [critic_terms(x, by="ActorCritic", value_clip=clip, huber_delta=delta, coef=coef)]

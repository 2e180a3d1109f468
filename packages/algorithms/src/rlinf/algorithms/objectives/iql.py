"""Implicit Q-learning: a critic that never asks what an action outside the data is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.awr import awr_weights
from rlinf.algorithms.objectives.critic import aggregate_q
from rlinf.algorithms.objectives.rows import Aggregate, Rows
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def expectile_loss(error: Tensor, *, expectile: float) -> Tensor:
    """The asymmetric square whose minimum is an expectile; 0.5 is the mean, 1 nearly the maximum.

    ℓ(u) = |τ − 1(u < 0)| u²

    Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021), eq. 3, arXiv:2110.06169.

    Args:
        error: any shape, u = target − prediction; differentiable.
        expectile: τ in (0, 1].

    Returns:
        The shape of `error`.

    Raises:
        ConfigError: `expectile` is out of range.
    """
    expect_range("expectile_loss(expectile)", expectile, 0.0, 1.0, open_low=True)
    square = error.square()
    return torch.where(error < 0, (1.0 - expectile) * square, expectile * square)


@takes_tensors
def iql_value_loss(
    value: Tensor, q: Tensor, *, expectile: float = 0.7, aggregate: Aggregate = "min", weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """How far the value is from an upper expectile of Q over the data's actions.

    L = |τ − 1(u < 0)| u²,   u = aggₙ Q̄ₙ(s, a) − V(s)

    Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021), eq. 5, arXiv:2110.06169.

    Args:
        value: `[B]`, V(s); differentiable.
        q: `[B, N]`, the target critics on the data's action, taken without their gradient.
        expectile: τ in (0, 1].
        aggregate: "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `value_loss`; `value`; `advantage`, the mean u.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("iql_value_loss", value.shape[0], weight, value)
    value = rows.take("value", value)
    error = aggregate_q(rows.take("q", q.detach(), None), aggregate=aggregate) - value
    loss = expectile_loss(error, expectile=expectile)
    return rows.output(loss, {"value_loss": loss, "value": value, "advantage": error})


@takes_tensors
def iql_actor_loss(
    logprob: Tensor,
    value: Tensor,
    q: Tensor,
    *,
    beta: float = 3.0,
    max_weight: float = 100.0,
    aggregate: Aggregate = "min",
    weight: Tensor | None = None,
) -> LossOutput[Tensor]:
    """Cloning of the data's actions, the better ones more.

    L = −min(exp(β (aggₙ Q̄ₙ(s, a) − V(s))), c) log π(a|s)

    Kostrikov et al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021), eq. 7, arXiv:2110.06169; the clip c is
    that of the authors' implementation.

    Args:
        logprob: `[B]`, of the data's actions; differentiable.
        value: `[B]`, V(s), taken without its gradient.
        q: `[B, N]`, the target critics on the data's action, taken without their gradient.
        beta: β ≥ 0, an inverse temperature in 1 / units of value; 0 is behaviour cloning.
        max_weight: c > 0.
        aggregate: "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `advantage`; `advantage_weight`; `advantage_clip_fraction`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("iql_actor_loss", logprob.shape[0], weight, logprob)
    value, q = rows.take("value", value.detach()), rows.take("q", q.detach(), None)
    advantage = aggregate_q(q, aggregate=aggregate) - value
    factor = awr_weights(advantage, beta=beta, max_weight=max_weight)
    loss = -factor * rows.take("logprob", logprob)
    clipped = (factor >= max_weight).to(loss.dtype)
    observed = {"actor_loss": loss, "advantage": advantage, "advantage_weight": factor, "advantage_clip_fraction": clipped}
    return rows.output(loss, observed)

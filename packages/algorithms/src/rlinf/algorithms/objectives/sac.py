"""Soft actor-critic: a critic of reward and entropy, an actor that follows it, and a temperature that keeps the entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap, aggregate_q, td_target
from rlinf.algorithms.objectives.rows import Aggregate, Rows, coefficient, expect_rows
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

Parametrisation = Literal["exp", "softplus", "fixed"]
"""How a free parameter becomes a temperature."""


@takes_tensors
def sac_target(
    reward: Tensor,
    terminated: Tensor,
    q_next: Tensor,
    logprob_next: Tensor,
    *,
    gamma: float | Tensor,
    alpha: float | Tensor,
    aggregate: Aggregate = "min",
    subset: Tensor | Sequence[int] | None = None,
    backup_entropy: bool = True,
    bootstrap: Bootstrap = "standard",
) -> Tensor:
    """What the critics of soft actor-critic should say.

    y = r + γ (1 − terminated) (aggₙ Q̄ₙ(s′, a′) − α log π(a′|s′)),   a′ ~ π(·|s′)

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), eq. 3 and 5, arXiv:1812.05905; a random subset of
    the critics as in Chen et al., "Randomized Ensembled Double Q-Learning" (2021), alg. 1, arXiv:2101.05982. A truncated
    transition bootstraps: only `terminated` is asked for.

    Args:
        reward: `[B]`; of an action chunk, the sum over its steps.
        terminated: `[B]` bool, the task itself ended here.
        q_next: `[B, N]`, the target critics on the next state and a fresh action; where terminated it may be anything.
        logprob_next: `[B]`, of that action.
        gamma: discount of one row in [0, 1], or `[B]` if rows differ (γᵏ for k steps).
        alpha: temperature ≥ 0, or `[]`.
        aggregate: "min" or "mean" over critics.
        subset: the critics that are asked (`redq_subset`); None for all.
        backup_entropy: whether the entropy belongs to the value; without it, only the actor is paid for it.
        bootstrap: "standard"; or "always", also where terminated.

    Returns:
        `[B]`, no gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    expect_rows("sac_target(logprob_next)", logprob_next, q_next.shape[0])
    value = aggregate_q(q_next, aggregate=aggregate, subset=subset)
    temper = coefficient("sac_target(alpha)", alpha)
    if backup_entropy:
        value = value - temper * at_least_float32(logprob_next)
    return td_target(reward, terminated, value, gamma=gamma, bootstrap=bootstrap)


def redq_subset(num_critics: int, size: int, generator: torch.Generator) -> Tensor:
    """Which critics are asked: `size` different ones, each set as likely as any other.

    M = the indices of the |M| smallest of N uniform numbers

    Chen et al., "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model" (2021), alg. 1, arXiv:2101.05982.

    Args:
        num_critics: N.
        size: |M| in [1, N].
        generator: of random numbers.

    Returns:
        `[|M|]` int64 on the generator's device, indices below N, in ascending order.

    Raises:
        ConfigError: `size` is out of range.
    """
    expect_range("redq_subset(size)", size, 1, num_critics)
    drawn = torch.rand(num_critics, generator=generator, dtype=torch.float64, device=generator.device)
    return drawn.argsort()[:size].sort().values


@takes_tensors
def sac_actor_loss(
    logprob: Tensor, q: Tensor, *, alpha: float | Tensor, aggregate: Aggregate = "min", weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """What the actor of soft actor-critic minimises.

    L = α log π(a|s) − aggₙ Qₙ(s, a),   a = f(ε; s) ~ π(·|s)

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), eq. 7, arXiv:1812.05905. The gradient reaches the
    actor through `logprob` and, by the action, through `q`; neither is detached. Only the actor's optimizer may step on it.

    Args:
        logprob: `[B]`, of a fresh action; differentiable.
        q: `[B, N]`, the critics on that action; differentiable.
        alpha: temperature ≥ 0, or `[]`, taken without its gradient.
        aggregate: "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `entropy`, the mean −log π; `actor_q`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("sac_actor_loss", q.shape[0], weight, q)
    logprob = rows.take("logprob", logprob)
    value = aggregate_q(rows.take("q", q, None), aggregate=aggregate)
    loss = coefficient("sac_actor_loss(alpha)", alpha) * logprob - value
    return rows.output(loss, {"actor_loss": loss, "entropy": -logprob, "actor_q": value})


@takes_tensors
def temperature(raw: Tensor, *, parametrisation: Parametrisation = "exp") -> Tensor:
    """The temperature that a free parameter stands for.

    α = exp(x),   α = log(1 + exp(x)),   or α = x without a gradient

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), sec. 5, arXiv:1812.05905, leave the
    parametrisation open.

    Args:
        raw: `[]`, x; differentiable.
        parametrisation: "exp", "softplus" or "fixed".

    Returns:
        `[]`, positive if `parametrisation` is not "fixed".

    Raises:
        ShapeError: `raw` is not a scalar.
        ConfigError: `parametrisation` is none of the three.
    """
    expect_choice("temperature(parametrisation)", parametrisation, ("exp", "softplus", "fixed"))
    expect_shape("temperature(raw)", raw, ())
    if parametrisation == "fixed":
        return at_least_float32(raw.detach())
    return at_least_float32(raw).exp() if parametrisation == "exp" else torch.nn.functional.softplus(at_least_float32(raw))


def initial_temperature(alpha: float, *, parametrisation: Parametrisation = "exp") -> float:
    """The free parameter that stands for a temperature: the inverse of `temperature`.

    x = log α,   x = log(exp(α) − 1) = α + log(1 − exp(−α)),   or x = α

    Args:
        alpha: α > 0.
        parametrisation: "exp", "softplus" or "fixed".

    Returns:
        x.

    Raises:
        ConfigError: an argument is out of range.
    """
    expect_choice("initial_temperature(parametrisation)", parametrisation, ("exp", "softplus", "fixed"))
    expect_range("initial_temperature(alpha)", alpha, 0.0, float("inf"), open_low=True)
    if parametrisation == "fixed":
        return alpha
    # expm1 keeps the inverse of softplus exact for a small α, where exp(α) − 1 rounds to 0.
    return math.log(alpha) if parametrisation == "exp" else alpha + math.log(-math.expm1(-alpha))


@takes_tensors
def temperature_loss(alpha: Tensor, logprob: Tensor, *, target_entropy: float, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """What the temperature minimises: it rises while the actor's entropy is below the target.

    L = −α (log π(a|s) + H̄)

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), eq. 18, arXiv:1812.05905. Give `temperature(raw)`
    for the paper's gradient; give `raw` itself with "exp" for the variant −log α (log π + H̄) of many implementations.

    Args:
        alpha: `[]`, α; differentiable.
        logprob: `[B]`, of a fresh action, taken without its gradient.
        target_entropy: H̄ in nats, as a rule minus the number of action dimensions.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `alpha_loss`; `alpha`, what was given.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("temperature_loss(alpha)", alpha, ())
    rows = Rows.of("temperature_loss", logprob.shape[0], weight, logprob)
    loss = -at_least_float32(alpha) * (rows.take("logprob", logprob).detach() + target_entropy)
    return rows.output(loss, {"alpha_loss": loss, "alpha": at_least_float32(alpha).expand_as(loss)})

"""Conservative Q-learning: a critic that values nothing highly that the data does not show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, distance
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Rows, coefficient
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def uniform_log_density(low: Tensor, high: Tensor) -> Tensor:
    """The log-density of an action drawn evenly from a box.

    log μ = −Σ log(high − low)

    Args:
        low: `[A]`, the least of each dimension.
        high: `[A]`, the greatest, above `low`.

    Returns:
        `[]`.

    Raises:
        ShapeError: the shapes differ.
    """
    expect_shape("uniform_log_density(high)", high, low.shape)
    return -(at_least_float32(high) - at_least_float32(low)).log().sum()


@takes_tensors
def cql_penalty(
    q: Tensor,
    q_samples: Tensor,
    log_density: Tensor,
    *,
    temperature: float = 1.0,
    floor: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """How much higher a critic values sampled actions than the data's.

    p = τ log (1/S Σₛ exp((Q(s, aₛ) − log μ(aₛ|s)) / τ)) − Q(s, a),   aₛ ~ μ

    With τ = 1 the first term estimates log ∫ exp Q(s, a) da by importance sampling: Kumar et al., "Conservative Q-Learning
    for Offline Reinforcement Learning" (2020), eq. 4 and app. F, arXiv:2006.04779. Half of the samples are drawn evenly, half
    from the policy. With a floor, Q(s, aₛ) is at least that: Nakamoto et al., "Cal-QL" (2023), eq. 5, arXiv:2303.05479.

    Args:
        q: `[B, N]`, the critics on the data's action; differentiable.
        q_samples: `[B, S, N]`, the critics on sampled actions; differentiable.
        log_density: `[B, S]`, log μ of each sample (`uniform_log_density`, or the policy's), taken without its gradient.
        temperature: τ > 0.
        floor: `[B, S]`, the data's return-to-go for samples of the policy and −inf for others; None for none.
        weight: `[B]`, that of the loss; a row of weight 0 may hold anything and has no gradient.

    Returns:
        `[B, N]`, differentiable. Some implementations leave out 1/S: theirs is larger by τ log S.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `temperature` is not positive.
    """
    expect_range("cql_penalty(temperature)", temperature, 0.0, float("inf"), open_low=True)
    rows = Rows.of("cql_penalty", q.shape[0], weight, q)
    q_data = rows.take("q", q, None)
    sampled = rows.take("q_samples", q_samples, None, q.shape[1])
    samples = sampled.shape[1]
    # The density only corrects for how samples were drawn; the critic's loss must not train the policy.
    density = rows.take("log_density", log_density.detach(), samples)
    if floor is not None:
        sampled = torch.maximum(sampled, rows.take("floor", floor.detach(), samples)[..., None])
    logit = (sampled - density[..., None]) / temperature
    return temperature * (logit.logsumexp(1) - math.log(samples)) - q_data


@takes_tensors
def cql_critic_loss(
    q: Tensor,
    target: Tensor,
    penalty: Tensor,
    *,
    alpha: float | Tensor,
    gap: float = 0.0,
    huber_delta: float | None = None,
    weight: Tensor | None = None,
) -> LossOutput[Tensor]:
    """How far the critics are from their target, and from being conservative.

    L = Σₙ (½ (Qₙ(s, a) − y)² + α (pₙ − g))

    Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (2020), eq. 4 and 30, arXiv:2006.04779.

    Args:
        q: `[B, N]`, the critics on the data's action; differentiable.
        target: `[B]`, y, taken without its gradient.
        penalty: `[B, N]`, `cql_penalty` or `cql_discrete_penalty`; differentiable.
        alpha: α ≥ 0, or `[]` as `cql_alpha_loss` trains it, taken without its gradient.
        gap: g, how much the penalty may be; only matters with a trained α.
        huber_delta: δ > 0; None for the square alone.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight, and of each row the mean |Q − y| over critics. Metrics: `critic_loss`, without the penalty;
        `cql_penalty`, the mean over critics; `q`; `target`; `td_error`, the mean |Q − y|.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    expect_range("cql_critic_loss(huber_delta)", huber_delta, 0.0, float("inf"), open_low=True)
    rows = Rows.of("cql_critic_loss", q.shape[0], weight, q)
    q, target = rows.take("q", q, None), rows.take("target", target).detach()
    penalty = rows.take("penalty", penalty, q.shape[1])
    error = q - target[:, None]
    bellman, far = distance(error, huber_delta).sum(1), error.abs().mean(1)
    loss = bellman + coefficient("cql_critic_loss(alpha)", alpha) * (penalty - gap).sum(1)
    observed = {"critic_loss": bellman, "cql_penalty": penalty.mean(1), "q": q.mean(1), "target": target, "td_error": far}
    return rows.output(loss, observed, td_error=far)


@takes_tensors
def cql_alpha_loss(alpha: Tensor, penalty: Tensor, *, gap: float, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """What the weight of the penalty minimises: it rises while the penalty is above the gap.

    L = −α 1/N Σₙ (pₙ − g)

    Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (2020), eq. 30, arXiv:2006.04779.

    Args:
        alpha: `[]`, α ≥ 0, as a rule `temperature(raw)`; differentiable.
        penalty: `[B, N]`, taken without its gradient.
        gap: g, how much the penalty may be, in units of Q.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `cql_alpha_loss`; `cql_alpha`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("cql_alpha_loss(alpha)", alpha, ())
    rows = Rows.of("cql_alpha_loss", penalty.shape[0], weight, penalty)
    loss = -at_least_float32(alpha) * (rows.take("penalty", penalty.detach(), None).mean(1) - gap)
    return rows.output(loss, {"cql_alpha_loss": loss, "cql_alpha": at_least_float32(alpha).expand_as(loss)})


@takes_tensors
def cql_discrete_penalty(q_all: Tensor, action: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """How much higher a critic values some action than the data's, where actions can be counted.

    p = log Σₐ exp Q(s, a) − Q(s, a_data)

    Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (2020), eq. 4, arXiv:2006.04779.

    Args:
        q_all: `[B, A, N]`, N critics on each of A actions; differentiable.
        action: `[B]` int in [0, A), the data's.
        weight: `[B]`, that of the loss; a row of weight 0 may hold anything and has no gradient.

    Returns:
        `[B, N]`, at least 0; differentiable.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    rows = Rows.of("cql_discrete_penalty", q_all.shape[0], weight, q_all)
    q = rows.take("q_all", q_all, None, None)
    # `take` makes float32 of it, which is exact up to 2²⁴ actions.
    index = rows.take("action", action).to(torch.int64)[:, None, None].expand(-1, 1, q.shape[2])
    return q.logsumexp(1) - q.gather(1, index).squeeze(1)

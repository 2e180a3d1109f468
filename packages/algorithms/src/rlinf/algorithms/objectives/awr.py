"""Learning from advantages without a policy gradient: as weights of cloning, or as a condition of the policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Rows, expect_rows
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def awr_weights(advantage: Tensor, *, beta: float, max_weight: float = 20.0) -> Tensor:
    """How much each action is worth imitating.

    w = min(exp(β Â), c)

    Peng et al., "Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning" (2019), alg. 1 and
    sec. 5, arXiv:1910.00177, whose temperature is 1/β.

    Args:
        advantage: any shape, Â.
        beta: β ≥ 0, an inverse temperature in 1 / units of advantage.
        max_weight: c > 0; infinity for no bound.

    Returns:
        The shape of `advantage` in at least float32, no gradient.

    Raises:
        ConfigError: a hyper-parameter is out of range.
    """
    expect_range("awr_weights(beta)", beta, 0.0, float("inf"))
    expect_range("awr_weights(max_weight)", max_weight, 0.0, float("inf"), open_low=True)
    return (beta * at_least_float32(advantage.detach())).exp().clamp(max=max_weight)


@takes_tensors
def awac_weights(advantage: Tensor, *, beta: float, mask: Tensor | None = None) -> Tensor:
    """How much each action is worth imitating, relative to the rest of the batch.

    wᵢ = n exp(β Âᵢ) / Σⱼ exp(β Âⱼ)

    Nair et al., "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (2020), eq. 9 and 13,
    arXiv:2006.09359, whose λ is 1/β and whose normaliser Z is estimated over the batch here. It is a statistic of the whole
    batch: compute it once, before the batch is split. Without the normaliser, AWAC is `awr_weights` with `max_weight`
    infinity.

    Args:
        advantage: `[B]`, Â.
        beta: β ≥ 0, an inverse temperature in 1 / units of advantage.
        mask: `[B]` bool, the n rows that count; None for all.

    Returns:
        `[B]`, no gradient; the mean over rows that count is 1, the others are 0.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    expect_range("awac_weights(beta)", beta, 0.0, float("inf"))
    expect_rows("awac_weights(advantage)", advantage, advantage.shape[0])
    valid = _valid("awac_weights", advantage, mask)
    logit = torch.where(valid, beta * at_least_float32(advantage.detach()), -torch.inf)
    # Where no row counts the softmax is NaN, which the select leaves out.
    return torch.where(valid, valid.sum() * logit.softmax(0), 0.0)


@takes_tensors
def weighted_bc_loss(logprob: Tensor, factor: Tensor, *, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """Cloning with a factor for each action.

    L = −w log π(a|s)

    Peng et al., "Advantage-Weighted Regression" (2019), eq. 10, arXiv:1910.00177; Nair et al., "AWAC" (2020), eq. 13,
    arXiv:2006.09359. The factor changes what a row costs, not what it counts: the mean is over rows.

    Args:
        logprob: `[B]`, of the data's actions; differentiable.
        factor: `[B]`, `awr_weights` or `awac_weights`, taken without its gradient.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `advantage_weight`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    rows = Rows.of("weighted_bc_loss", logprob.shape[0], weight, logprob)
    factor = rows.take("factor", factor.detach())
    loss = -factor * rows.take("logprob", logprob)
    return rows.output(loss, {"actor_loss": loss, "advantage_weight": factor})


@takes_tensors
def lookahead_advantages(reward: Tensor, value: Tensor, *, steps: int) -> Tensor:
    """How much further the next N steps of a recorded episode led than was expected.

    Âₜ = Σ_{k<N} rₜ₊ₖ + Vₜ₊ₙ − Vₜ,   where r and V are 0 behind the end of the episode

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), sec. IV, arXiv:2511.14759. With N of the length of
    the episode at least it is the return minus what was expected.

    Args:
        reward: `[T]`, of each step.
        value: `[T]`, V before each step.
        steps: N, at least 1.

    Returns:
        `[T]` float64, no gradient.

    Raises:
        ShapeError: the shapes differ, or are none of steps.
        ConfigError: `steps` is less than 1.
    """
    expect_at_least("lookahead_advantages(steps)", steps, 1)
    expect_rows("lookahead_advantages(reward)", reward, len(reward))
    expect_shape("lookahead_advantages(value)", value, reward.shape)
    zero = reward.new_zeros(1, dtype=torch.float64)
    earned = torch.cat([zero, reward.detach().double().cumsum(0)])
    expected = torch.cat([value.detach().double(), zero])
    now = torch.arange(len(reward), device=reward.device)
    later = (now + steps).clamp(max=len(reward))
    return earned[later] - earned[now] + expected[later] - expected[now]


@takes_tensors
def worst_of_ensemble(advantage: Tensor) -> Tensor:
    """What the least hopeful of N critics says of each decision.

    Âₜ = minᵢ Âᵢₜ

    Liu et al., "STEAM: Self-Supervised Temporal Ensemble Advantage Modeling for Real-World Robot Learning" (2026),
    arXiv:2606.29834, abstract: what one critic overrates, as it has seen nothing like it, another one seldom does as well.

    Args:
        advantage: `[N, T]`, of each critic.

    Returns:
        `[T]`, no gradient.

    Raises:
        ShapeError: there is no critic, or `advantage` has another rank.
    """
    if advantage.ndim != 2 or not len(advantage):
        problem = f"expected [N, T] of at least one critic, found the shape {tuple(advantage.shape)}"
        raise ShapeError("worst_of_ensemble(advantage)", problem)
    return advantage.detach().amin(0)


@takes_tensors
def advantage_threshold(advantage: Tensor, *, positive_fraction: float = 0.3, mask: Tensor | None = None) -> float:
    """The advantage that a given fraction of decisions reaches.

    ε = the (1 − p)-quantile of Â, interpolated between neighbours

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), sec. IV, arXiv:2511.14759, sets ε for each task
    so that a fraction p of its decisions is positive: call it once for a task's whole data set.

    Args:
        advantage: any shape, Â.
        positive_fraction: p in [0, 1].
        mask: the same shape, bool; None if everything counts.

    Returns:
        ε.

    Raises:
        ShapeError: a shape disagrees, or nothing counts.
        ConfigError: `positive_fraction` is out of range.
    """
    expect_range("advantage_threshold(positive_fraction)", positive_fraction, 0.0, 1.0)
    ranked = advantage.detach()[_valid("advantage_threshold", advantage, mask)].double().sort().values
    if ranked.numel() == 0:
        raise ShapeError("advantage_threshold(advantage)", "expected at least one advantage that counts, found none")
    # (1 − 0.9) · 10 is 0.9999…98 in floats: without rounding, a quantile that falls on a value would miss it
    position = round((ranked.numel() - 1) * (1.0 - positive_fraction), 9)
    low, high = ranked[math.floor(position)].item(), ranked[math.ceil(position)].item()
    return low if low == high else low + (position - math.floor(position)) * (high - low)


@takes_tensors
def advantage_labels(
    advantage: Tensor, *, threshold: float, strict: bool = False, forced: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Which decisions the policy is told were good.

    I = [Â ≥ ε]   or, if strict, [Â > ε];   I = 1 where forced

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), sec. IV, arXiv:2511.14759, where corrections by
    humans are always good. RECAP's labels are not strict, STEAM's are.

    Args:
        advantage: any shape, Â.
        threshold: ε, from `advantage_threshold` or given.
        strict: whether an advantage must exceed ε.
        forced: the same shape, bool, good whatever the advantage; None for nowhere.
        mask: the same shape, bool, False where nothing was decided; None if everything counts.

    Returns:
        The same shape, bool; False where masked.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    value = advantage.detach().double()
    good = value > threshold if strict else value >= threshold
    if forced is not None:
        expect_shape("advantage_labels(forced)", forced, advantage.shape)
        good = good | forced.bool()
    return good & _valid("advantage_labels", advantage, mask)


def _valid(by: str, x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones_like(x, dtype=torch.bool)
    expect_shape(f"{by}(mask)", mask, x.shape)
    return mask.bool()

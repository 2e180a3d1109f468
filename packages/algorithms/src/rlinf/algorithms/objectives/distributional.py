"""Critics that say how returns are distributed, as a histogram or by quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_fraction, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, distance
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Rows, expect_rows
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def categorical_projection(position: Tensor, prob: Tensor, atoms: Tensor) -> Tensor:
    """A histogram moved onto fixed atoms: each mass is shared between its two neighbours, so that the mean stays.

    mᵢ = Σⱼ pⱼ max(0, 1 − |clip(xⱼ, z₁, z_Z) − zᵢ| / Δ),   Δ = the gap between zᵢ and its neighbour towards xⱼ

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning" (2017), eq. 7, arXiv:1707.06887; atoms need not
    be evenly spaced.

    Args:
        position: `[B, Y]`, xⱼ; beyond the atoms, mass goes to the outermost.
        prob: `[B, Y]`, pⱼ.
        atoms: `[Z]`, zᵢ, Z ≥ 2, ascending.

    Returns:
        `[B, Z]`, no gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_rows("categorical_projection(position)", position, position.shape[0], None)
    expect_shape("categorical_projection(prob)", prob, position.shape)
    if atoms.dim() != 1 or atoms.shape[0] < 2:
        raise ShapeError("categorical_projection(atoms)", f"expected [Z] with Z of 2 at least, found {tuple(atoms.shape)}")
    z, mass = at_least_float32(atoms.detach()), at_least_float32(prob.detach())
    gap = z.diff()
    offset = at_least_float32(position.detach()).clamp(z[0], z[-1])[:, :, None] - z
    # Beyond the outermost atoms lies nothing, as positions are clipped to them: any gap will do there.
    above = torch.cat([gap, gap[-1:]])
    below = torch.cat([gap[:1], gap])
    share = 1.0 - torch.where(offset >= 0, offset / above, -offset / below)
    return (mass[:, :, None] * share.clamp(min=0.0)).sum(1)


@takes_tensors
def categorical_target(reward: Tensor, terminated: Tensor, prob_next: Tensor, atoms: Tensor, *, gamma: float | Tensor) -> Tensor:
    """The histogram that a categorical critic should say.

    m = the projection of r + γ (1 − terminated) z with masses p(s′, a′)

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning" (2017), alg. 1, arXiv:1707.06887.

    Args:
        reward: `[B]`.
        terminated: `[B]` bool, the task itself ended here; a truncated transition bootstraps.
        prob_next: `[B, Z]`, the target critic's histogram of the next state and action.
        atoms: `[Z]`, ascending.
        gamma: discount of one row in [0, 1], or `[B]`.

    Returns:
        `[B, Z]`, no gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `gamma` is out of range.
    """
    expect_rows("categorical_target(terminated)", terminated, reward.shape[0])
    expect_rows("categorical_target(prob_next)", prob_next, reward.shape[0], *atoms.shape)
    if isinstance(gamma, torch.Tensor):
        expect_shape("categorical_target(gamma)", gamma, reward.shape)
    expect_fraction("categorical_target(gamma)", gamma)
    discount = torch.where(terminated.bool(), 0.0, gamma * torch.ones_like(at_least_float32(reward)))
    position = at_least_float32(reward)[:, None] + discount[:, None] * at_least_float32(atoms)
    return categorical_projection(position, prob_next, atoms)


@takes_tensors
def categorical_loss(logit: Tensor, target: Tensor, *, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """How far a categorical critic is from the histogram that it should say.

    L = −Σᵢ mᵢ log softmax(x)ᵢ

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning" (2017), alg. 1, arXiv:1707.06887.

    Args:
        logit: `[B, Z]`, x; differentiable.
        target: `[B, Z]`, m, taken without its gradient.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `critic_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    rows = Rows.of("categorical_loss", logit.shape[0], weight, logit)
    rows_logit = rows.take("logit", logit, None)
    loss = -(rows.take("target", target.detach(), rows_logit.shape[1]) * rows_logit.log_softmax(1)).sum(1)
    return rows.output(loss, {"critic_loss": loss})


@takes_tensors
def quantile_huber_loss(
    quantile: Tensor, target: Tensor, *, kappa: float = 1.0, tau: Tensor | None = None, weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """How far a critic's quantiles are from samples, or quantiles, of the return.

    L = Σᵢ 1/M′ Σⱼ |τᵢ − 1(uᵢⱼ < 0)| ℓ(uᵢⱼ),   uᵢⱼ = yⱼ − θᵢ,   ℓ = Huber's loss with κ, or |u| if κ = 0

    Dabney et al., "Distributional Reinforcement Learning with Quantile Regression" (2018), eq. 10, arXiv:1710.10044; without
    τ, those are the midpoints (i − ½) / M of lemma 2. Implicit quantile networks divide by κ.

    Args:
        quantile: `[B, M]`, θ; differentiable.
        target: `[B, M′]`, y, taken without its gradient.
        kappa: κ ≥ 0.
        tau: `[B, M]` in (0, 1), where quantiles were drawn; None for midpoints.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `critic_loss`; `q`, the mean quantile; `target`, the mean target.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `kappa` is negative.
    """
    expect_range("quantile_huber_loss(kappa)", kappa, 0.0, float("inf"))
    rows = Rows.of("quantile_huber_loss", quantile.shape[0], weight, quantile)
    found, wanted = rows.take("quantile", quantile, None), rows.take("target", target.detach(), None)
    count = found.shape[1]
    middle = (torch.arange(count, dtype=found.dtype, device=found.device) + 0.5) / count
    level = middle.expand_as(found) if tau is None else rows.take("tau", tau.detach(), count)
    error = wanted[:, None, :] - found[:, :, None]
    size = distance(error, kappa) if kappa > 0 else error.abs()
    tilt = torch.where(error < 0, 1.0 - level[..., None], level[..., None])
    loss = (tilt * size).mean(2).sum(1)
    return rows.output(loss, {"critic_loss": loss, "q": found.mean(1), "target": wanted.mean(1)})

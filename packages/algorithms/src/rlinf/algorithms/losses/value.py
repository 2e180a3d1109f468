"""The critic's loss."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import above, bounded, distance, larger
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, in_tiles, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def clipped_value_loss(
    value: Tensor,
    value_old: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    value_clip: float | None = None,
    huber_delta: float | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """How far the critic is from its targets.

    L = max(ℓ(V − y), ℓ(V_old + clip(V − V_old, ±ε) − y)),   ℓ(e) = ½ e², or with δ: ½ e² if |e| ≤ δ, else δ (|e| − ½ δ)

    Huber, "Robust Estimation of a Location Parameter" (1964), doi:10.1214/aoms/1177703732. The clip is that of the PPO
    implementation of OpenAI Baselines; no paper defines it.

    Args:
        value: `[B, T]`, by the current weights; differentiable.
        value_old: `[B, T]`, by the weights that decided.
        target: `[B, T]`, y.
        mask: `[B, T]` bool.
        value_clip: ε > 0, in units of value; None for no clip.
        huber_delta: δ > 0, in units of value; None for the square alone.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `value_loss`; `value_clip_fraction` if clipped, the
        share of decisions whose value moved by more than ε; `explained_variance`, 1 − Var(y − V) / Var(y).

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: ε or δ is not above 0.
    """
    check_critic(value_clip, huber_delta)
    terms = partial(value_terms, value_clip=value_clip, huber_delta=huber_delta)
    return in_tiles(terms, aggregation, value=value, value_old=value_old, target=target, mask=mask)


def value_terms(
    value: Tensor, value_old: Tensor, target: Tensor, mask: Tensor, value_clip: float | None, huber_delta: float | None
) -> Terms:
    """`clipped_value_loss` before it is summed."""
    for name, tensor in (("value", value), ("value_old", value_old), ("target", target)):
        expect_shape(f"clipped_value_loss({name})", tensor, mask.shape)
    value, value_old, target = (zero_masked(x, mask) for x in (value, value_old, target))
    loss = distance(value - target, huber_delta)
    observed: dict[str, Tensor] = {}
    if value_clip is not None:
        moved = value - value_old
        # The bound has no gradient: a value that has moved far enough is not pushed further, but may come back.
        near = value_old + bounded(moved, -value_clip, value_clip)
        loss = larger(loss, distance(near - target, huber_delta))
        observed["value_clip_fraction"] = above(moved.detach().abs(), value_clip)
    observed["value_loss"] = loss.detach()
    explained = {"explained_variance": (target, (target - value).detach())}
    return Terms(loss, observed, explained)


def check_critic(value_clip: float | None, huber_delta: float | None, value_loss_coef: float = 1.0) -> None:
    """Refuses hyper-parameters of a critic that are out of their ranges."""
    infinity = float("inf")
    expect_range("value_clip", value_clip, 0.0, infinity, open_low=True)
    expect_range("huber_delta", huber_delta, 0.0, infinity, open_low=True)
    expect_range("value_loss_coef", value_loss_coef, 0.0, infinity)

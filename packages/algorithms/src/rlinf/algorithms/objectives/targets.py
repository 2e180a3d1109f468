"""Slow copies of networks: when they move, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@no_grad
def polyak(target: Mapping[str, Tensor], online: Mapping[str, Tensor], *, tau: float) -> dict[str, Tensor]:
    """Target weights one step closer to the online weights.

    θ̄′ = (1 − τ) θ̄ + τ θ

    Lillicrap et al., "Continuous Control with Deep Reinforcement Learning" (2016), alg. 1, arXiv:1509.02971. Sums are in at
    least float32 and come back in the target's type: keep the target in float32, for τ is lost in bfloat16. What is not a
    float, such as a counter, is taken over. With τ = 1 it is the hard update.

    Args:
        target: θ̄ by name.
        online: θ by name, the same names and shapes.
        tau: τ in [0, 1].

    Returns:
        θ̄′ by name, in the order of `target`; new tensors.

    Raises:
        ShapeError: a name is on one side only, or two shapes disagree.
        ConfigError: `tau` is out of range.
    """
    expect_range("polyak(tau)", tau, 0.0, 1.0)
    alone = sorted(target.keys() ^ online.keys())
    if alone:
        raise ShapeError("polyak(online)", f"expected the names of the target, found a difference in {', '.join(alone)}")
    for name, x in target.items():
        expect_shape(f"polyak(online.{name})", online[name], x.shape)
    if all(x.dtype == torch.float32 == online[name].dtype and x.device == online[name].device for name, x in target.items()):
        return _all_towards(target, online, tau)
    return {name: _towards(x, online[name], tau) for name, x in target.items()}


def _all_towards(target: Mapping[str, Tensor], online: Mapping[str, Tensor], tau: float) -> dict[str, Tensor]:
    """All at once: one at a time the calls take longer than the sums."""
    if not target:
        return {}
    moved = torch._foreach_mul(list(target.values()), 1.0 - tau)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    torch._foreach_add_(moved, [online[name] for name in target], alpha=tau)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return dict(zip(target, moved, strict=True))


def _towards(target: Tensor, online: Tensor, tau: float) -> Tensor:
    if not target.is_floating_point():
        # A copy, as the online weights change in place.
        return online.to(target.dtype, copy=True)
    wide = torch.promote_types(target.dtype, torch.float32)
    return ((1.0 - tau) * target.to(wide) + tau * online.to(wide)).to(target.dtype)


def update_due(step: int, *, every: int) -> bool:
    """Whether something that happens every so many updates happens now: a hard target update, or a delayed actor.

    due = step mod every = 0

    Mnih et al., "Human-Level Control through Deep Reinforcement Learning" (2015), alg. 1, doi:10.1038/nature14236; Fujimoto
    et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), alg. 1, arXiv:1802.09477.

    Args:
        step: how many critic updates there were, this one included.
        every: the period ≥ 1.

    Raises:
        ConfigError: `every` is less than 1.
    """
    expect_at_least("update_due(every)", every, 1)
    return step % every == 0

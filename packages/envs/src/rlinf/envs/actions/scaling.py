"""Actions between a simulator's units and the [−1, 1] in which policies think.

All functions work on `[..., A]` and broadcast what describes an action, `[A]`, over the rest. Where `mask` is False the number
passes unchanged; None scales all. A dimension whose two ends agree maps to 0 in [−1, 1] and back to its one value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.envs.actions.arrays import Doubles, Floats, doubles, like


def to_unit(
    action: ArrayLike, low: ArrayLike, high: ArrayLike, *, mask: ArrayLike | None = None, clip: bool = False, epsilon: float = 0.0
) -> Floats:
    """Into [−1, 1]: a' = 2 (a − low) / (high − low + ε) − 1.

    With bounds this is the usual normalisation; with the 1 % and 99 % quantiles of a dataset it is that of OpenVLA and π0.5.

    Args:
        action: `[..., A]`.
        low: `[A]`, what becomes −1.
        high: `[A]`, what becomes 1.
        mask: `[A]` bool.
        clip: limit the result to [−1, 1], where it is scaled.
        epsilon: added to the span.

    Raises:
        ShapeError: sizes disagree.
        ConfigError: a bound is infinite, or a lower bound is above its upper one.
    """
    given = doubles(action, "action")
    lower, span = _span(given, low, high)
    # 0.5 becomes 0 in [−1, 1]; adding 0 times the action keeps NaN.
    scaled = 2.0 * np.divide(given - lower, span + epsilon, out=0.5 + 0.0 * given, where=span > 0.0) - 1.0
    return like(_where(mask, np.clip(scaled, -1.0, 1.0) if clip else scaled, given), action)


def from_unit(
    action: ArrayLike, low: ArrayLike, high: ArrayLike, *, mask: ArrayLike | None = None, clip: bool = False, epsilon: float = 0.0
) -> Floats:
    """Out of [−1, 1]: a = (a' + 1) / 2 · (high − low + ε) + low, the inverse of `to_unit`.

    The arguments are those of `to_unit`; `clip` limits a' to [−1, 1] first, where it is scaled.
    """
    given = doubles(action, "action")
    lower, span = _span(given, low, high)
    unit = np.clip(given, -1.0, 1.0) if clip else given
    scaled = np.where(span > 0.0, 0.5 * (unit + 1.0) * (span + epsilon), unit * 0.0) + lower
    return like(_where(mask, scaled, given), action)


def _span(action: Doubles, low: ArrayLike, high: ArrayLike) -> tuple[Doubles, Doubles]:
    lower, upper = _described(action, low, "low"), _described(action, high, "high")
    if not (np.isfinite(lower) & np.isfinite(upper)).all():
        raise ConfigError("action", "can't scale by infinite bounds", "Give statistics of a dataset instead.")
    if (lower > upper).any():
        where = np.argwhere(lower > upper)[0].tolist()
        raise ConfigError("action", f"the lower bound is above the upper one at index {where}", "Swap the two.")
    return lower, upper - lower


def _described(action: Doubles, values: ArrayLike, name: str) -> Doubles:
    array = np.asarray(values, np.float64)
    if array.ndim and array.shape[-1] != action.shape[-1]:
        problem = f"expected one number for each of {action.shape[-1]} action dimensions, found the shape {list(array.shape)}"
        raise ShapeError(name, problem)
    return array


def _where(mask: ArrayLike | None, scaled: Doubles, given: Doubles) -> Doubles:
    if mask is None:
        return scaled
    chosen = np.asarray(mask)
    if chosen.dtype != np.bool_ or chosen.shape != given.shape[-1:]:
        raise ShapeError("mask", f"expected bool of shape [{given.shape[-1]}], found {chosen.dtype} {list(chosen.shape)}")
    return np.where(chosen, scaled, given)

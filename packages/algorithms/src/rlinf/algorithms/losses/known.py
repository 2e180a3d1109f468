"""Numbers where something was decided, and nothing elsewhere."""

from __future__ import annotations

from torch import Tensor

from rlinf.algorithms.elementwise import keep
from rlinf.algorithms.losses.terms import like
from rlinf.algorithms.precision import precise


def known(x: Tensor, mask: Tensor) -> Tensor:
    """`x` in float32 or finer, 0 without a gradient where masked: what stands there may be anything.

    Args:
        x: `[B, T, …]`.
        mask: bool, the leading axes of `x`.
    """
    return keep(precise(x), like(mask.bool(), x))

"""From the log-probabilities of single action dimensions to those of steps, and of whole chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.algorithms.losses.terms import like
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_shape
from rlinf.core import sequences
from rlinf.core.errors import ShapeError
from rlinf.core.sequences import Granularity, check_granularity


def at_granularity(x: Tensor, granularity: Granularity, executed: Tensor | None = None) -> Tensor:
    """Adds log-probabilities, or entropies, of the parts of a decision up to what counts as one action.

    log π(a₁, …, a_n | s) = Σᵢ log π(aᵢ | s, a_<i),   H(π) = Σᵢ H(π(· | s, a_<i))

    The chain rule of probability. So the ratio of a chunk is the product of the ratios of its steps, and that of a step the product
    over its dimensions. What is coarse already stays as it is.

    | granularity | `[B, T, K, A]` becomes | `[B, T, K]` becomes | one ratio for |
    |---|---|---|---|
    | `token_level` | `[B, T, K, A]` | `[B, T, K]` | each dimension of each step |
    | `action_level` | `[B, T, K]` | `[B, T, K]` | each step |
    | `chunk_level` | `[B, T]` | `[B, T]` | the whole decision |

    Args:
        x: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, in nats.
        granularity: what counts as one action.
        executed: `[B, T, K]` bool, False for steps that the robot never made, which add nothing; None if it made all.

    Returns:
        At least float32; differentiable.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: there is no such granularity; the message has the nearest.
    """
    if not 2 <= x.dim() <= 4:
        raise ShapeError("at_granularity(x)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(x.shape)}")
    check_granularity(granularity, place="at_granularity(granularity)")
    x = precise(x)
    if executed is not None:
        expect_shape("at_granularity(executed)", executed, _steps(x))
        x = torch.where(like(executed.bool(), x), x, 0.0)
    return sequences.at_granularity(x, granularity, axes=2)


def _steps(x: Tensor) -> tuple[int, ...]:
    if x.dim() == 2:
        raise ShapeError("at_granularity(executed)", f"expected None where x has no steps, found x {tuple(x.shape)}")
    return tuple(x.shape[:3])

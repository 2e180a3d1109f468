"""Between one number a row, one number a decision, and one number for each element of a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def row_score(reward: Tensor, mask: Tensor) -> Tensor:
    """What the rewards of a row add up to.

    sᵦ = Σₜ maskᵦₜ rᵦₜ

    Args:
        reward: `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided.

    Returns:
        `[B]`, 0 for a row without decisions.

    Raises:
        ShapeError: `mask` has another shape than `reward`.
    """
    expect_shape("row_score(mask)", mask, reward.shape)
    return torch.where(mask.bool(), at_least_float32(reward), 0.0).sum(1)


@takes_tensors
def at_last_decision(score: Tensor, mask: Tensor) -> Tensor:
    """A reward that is paid with the last decision of each row.

    rᵦₜ = sᵦ where t is the last unmasked column of row b, else 0

    Args:
        score: `[B]`.
        mask: `[B, T]` bool, False where nothing was decided.

    Returns:
        `[B, T]`; a row without decisions gets nothing.

    Raises:
        ShapeError: `score` is not `[B]`.
    """
    expect_shape("at_last_decision(score)", score, mask.shape[:1])
    # The last unmasked column of a row is where the running count reaches its final value.
    decisions = mask.long().cumsum(1)
    last = mask.bool() & (decisions == decisions[:, -1:])
    return torch.where(last, at_least_float32(score)[:, None], 0.0)


@takes_tensors
def to_decisions(advantage: Tensor, mask: Tensor) -> Tensor:
    """The advantage of a row as the advantage of each of its decisions.

    Âᵦₜ = maskᵦₜ Âᵦ

    Args:
        advantage: `[B]`.
        mask: `[B, T]` bool, False where nothing was decided.

    Returns:
        `[B, T]`, 0 where masked.

    Raises:
        ShapeError: `advantage` is not `[B]`.
    """
    expect_shape("to_decisions(advantage)", advantage, mask.shape[:1])
    return torch.where(mask.bool(), advantage[:, None], 0.0)


def joint(logprob: Tensor) -> Tensor:
    """The log-probability of a whole decision, the sum over its control steps and action dimensions.

    log π(a) = Σₖ Σⱼ log π(aₖⱼ)

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`.

    Returns:
        `[B, T]`, float32 or finer.
    """
    exact = at_least_float32(logprob)
    return exact if exact.dim() == 2 else exact.flatten(2).sum(2)

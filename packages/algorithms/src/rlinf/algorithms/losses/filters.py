"""Which rows are worth training on, as masks; those by groups are computed before a batch is parted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlinf.algorithms.advantages.grouping import Grouping, checked
from rlinf.algorithms.checks import expect_ordered, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import difference
from rlinf.algorithms.lazy import no_grad
from rlinf.algorithms.losses.ratio import at_granularity, check_logprobs
from rlinf.algorithms.losses.terms import zero_masked
from rlinf.core.config import expect_range
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def dynamic_sampling(
    score: Tensor, group: Tensor, *, low: float | None = None, high: float | None = None, tolerance: float = 0.0
) -> Tensor:
    """Keeps the groups that teach something: whose scores differ, and are neither too bad nor too good on average.

    keep group g if max_g − min_g > tolerance and low ≤ mean_g ≤ high

    Yu et al., "DAPO" (2025), eq. 11, arXiv:2503.14476, for which a group of right and wrong answers differs. Of a group of one
    nothing can be learnt by comparison; it is dropped.

    Args:
        score: `[B]`, the outcome of each row.
        group: `[B]` int, rows of one group answer the same question, in any order. All of a group must be here.
        low: the lowest mean kept, itself included; None for any.
        high: the highest mean kept, itself included; None for any.
        tolerance: how far the scores of a group must be apart at least, exclusive; ≥ 0.

    Returns:
        `[B]` bool, the same for all rows of a group.

    Raises:
        ShapeError: `score` is not `[B]`, or `group` has another shape.
        ConfigError: `low` is above `high`, or `tolerance` negative.
    """
    groups = Grouping.of(group, checked("dynamic_sampling", score, group, None))
    expect_ordered("dynamic_sampling(low)", low, high)
    expect_range("dynamic_sampling(tolerance)", tolerance, 0.0, math.inf)
    mean = groups.mean(score)
    keep = groups.highest(score) - groups.lowest(score) > tolerance
    if low is not None:
        keep &= mean >= low
    if high is not None:
        keep &= mean <= high
    return groups.of_rows(keep)


@takes_tensors
def overlong_filtering(mask: Tensor, truncated: Tensor) -> Tensor:
    """Takes the rows that a limit cut off out of the loss: nobody knows how they would have ended.

    mask′ = mask and not (any decision of the row was truncated)

    Yu et al., "DAPO" (2025), section 3.4, arXiv:2503.14476.

    Args:
        mask: `[B, T]` bool.
        truncated: `[B, T]` bool, a limit cut the episode here; what is masked does not count.

    Returns:
        `[B, T]` bool.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    if mask.dim() != 2:
        raise ShapeError("overlong_filtering(mask)", f"expected [B, T], found {tuple(mask.shape)}")
    expect_shape("overlong_filtering(truncated)", truncated, mask.shape)
    valid = mask.bool()
    return valid & ~(valid & truncated.bool()).any(1, keepdim=True)


@takes_tensors
@no_grad
def opsm(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, *, delta: float) -> Tensor:
    """Off-policy sequence masking (OPSM): bad rows that the policy has left behind teach nothing.

    keep a decision unless Âₜ < 0 and 1/|y| Σₜ (log π_oldₜ − log πₜ) > δ

    DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models" (2025), arXiv:2512.02556, whose π_old is what
    sampled, as the rollout engine computed it; slime's `use_opsm`. Whether a row is bad is asked of each of its decisions.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights; a decision's elements are summed.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`, as a rule the same for all decisions of a row.
        mask: `[B, T]` bool, False where nothing was decided.
        delta: δ ≥ 0, in nats; slime's is 1e-4.

    Returns:
        `[B, T]` bool, True for the decisions of `mask` that are kept.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: δ is out of range.
    """
    expect_range("opsm(delta)", delta, 0.0, float("inf"))
    check_logprobs("opsm", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    valid = mask.bool()
    left = -at_granularity(zero_masked(difference(logprob, logprob_old), mask), "chunk_level")
    mean = left.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)
    return valid & ~((advantage < 0) & (mean > delta))

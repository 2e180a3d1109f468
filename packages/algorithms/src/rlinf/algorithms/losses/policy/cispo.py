"""The policy gradient with clipped importance weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import expect_not_negative, takes_tensors
from rlinf.algorithms.elementwise import above
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, counted, in_tiles, per_decision, zero_masked
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def cispo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """Clipped importance-sampling policy optimisation: the weight is clipped, so every decision keeps its gradient.

    L = −sg[clip(ρ, 1 − ε_low, 1 + ε_high)] Â log π,   ρ = exp(log π − log π_old)

    MiniMax, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention" (2025), arXiv:2506.13585.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_ratio_low: ε_low ≥ 0; 1 or more for no lower bound.
        clip_ratio_high: ε_high ≥ 0.
        aggregation: what the total sums and the weight counts; by default decisions, as in the paper.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`, `ratio`, `ratio_abs` and `approx_kl` as those of
        `ppo_clip`; `clip_fraction`, the share of elements whose weight was clipped.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a bound is out of its range.
    """
    expect_not_negative(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    terms = partial(cispo_terms, low=clip_ratio_low, high=clip_ratio_high)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def cispo_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, low: float, high: float) -> Terms:
    """`cispo` before it is summed."""
    # The weight is a constant: detached before the exponential, no graph is built for it.
    ratio = ratio_of("cispo", logprob.detach(), logprob_old.detach(), advantage, mask)
    weight = ratio.value.clamp(1.0 - low, 1.0 + high)
    clipped = {"clip_fraction": above((weight - ratio.value).abs(), 0.0)}
    loss = per_decision(zero_masked(logprob, mask) * (-weight * ratio.gain))
    return Terms(loss, {"policy_loss": loss.detach(), **observed_ratio(ratio.log, mask), **counted(clipped)})


@dataclass(frozen=True, slots=True)
class CISPO(PolicyLoss):
    """CISPO by name: `algorithm.loss_type: cispo`."""

    by_rows: ClassVar[bool] = True

    clip_ratio_low: float = 1.0
    """ε_low ≥ 0, how far the weight may fall below 1; 1 for any distance, as in the paper."""
    clip_ratio_high: float = 4.0
    """ε_high ≥ 0, how far the weight may rise above 1. The paper leaves it to tuning; TRL recommends a weight of at most 5."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        expect_not_negative(clip_ratio_low=self.clip_ratio_low, clip_ratio_high=self.clip_ratio_high)

    def policy_terms(self, x: LossInputs) -> Terms:
        return cispo_terms(*x.decisions(by="CISPO"), self.clip_ratio_low, self.clip_ratio_high)

"""The geometric mean of a row's clipped ratios."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from rlinf.algorithms.checks import expect_not_negative, takes_tensors
from rlinf.algorithms.elementwise import above, bounded
from rlinf.algorithms.losses.policy.gspo import SEQUENCE_MEAN, row_mean
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, check_logprobs, log_ratio, masked_gain, observed_ratio
from rlinf.algorithms.losses.terms import Aggregation, Mode, Terms, counted, in_tiles, like
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

FAR: Final = 1e30
"""A bound that is none."""


@takes_tensors
def gmpo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_log_ratio_low: float = 0.4,
    clip_log_ratio_high: float = 0.4,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> LossOutput[Tensor]:
    """Geometric-mean policy optimisation: each decision's log-ratio is clipped pessimistically, then a row's are averaged.

    L = −Â exp(1/|y| Σₜ ℓₜ),   ℓₜ = min(log ρₜ, δ_high) if Â > 0, else max(log ρₜ, −δ_low),   ρ = π / π_old

    Zhao et al., "Geometric-Mean Policy Optimization" (2025), arXiv:2507.20673; the bounds are those of the paper's e^±0.4.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`, as a rule the same for all decisions of a row; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_log_ratio_low: δ_low ≥ 0, in nats.
        clip_log_ratio_high: δ_high ≥ 0, in nats.
        aggregation: what the total sums and the weight counts; by default rows, as in the paper.

    Returns:
        The sum of weighted losses and its weight. Metrics: `policy_loss`; `ratio`, `ratio_abs` and `approx_kl` as those of
        `ppo_clip`, of single decisions before the clip; `clip_fraction`, the share of elements whose gradient a bound took away.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a bound is negative.
    """
    expect_not_negative(clip_log_ratio_low=clip_log_ratio_low, clip_log_ratio_high=clip_log_ratio_high)
    terms = partial(gmpo_terms, low=clip_log_ratio_low, high=clip_log_ratio_high)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def gmpo_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, low: float, high: float) -> Terms:
    """`gmpo` before it is summed."""
    check_logprobs("gmpo", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    gain = masked_gain(advantage, mask)
    log, each = log_ratio(logprob, logprob_old, mask), like(gain, logprob)
    good = above(each, 0.0)
    # Only the pessimistic bound holds: for a gain the lower one is moved out of the way, for a loss the upper one.
    kept = bounded(log, -low - good * FAR, high + (1.0 - good) * FAR)
    row = bounded(row_mean(kept, mask), -LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    # Where the advantage is 0 there is no gradient that a bound could take away.
    clipped = {"clip_fraction": above((kept - log).detach().abs() * each.abs(), 0.0)}
    loss = -gain * row
    seen = observed_ratio(log.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), mask)
    return Terms(loss, {"policy_loss": loss.detach(), **seen, **counted(clipped)})


@dataclass(frozen=True, slots=True)
class GMPO(PolicyLoss):
    """GMPO by name: `algorithm.loss_type: gmpo`."""

    by_rows: ClassVar[bool] = True

    clip_log_ratio_low: float = 0.4
    """δ_low ≥ 0, how far a log-ratio may fall below 0, in nats."""
    clip_log_ratio_high: float = 0.4
    """δ_high ≥ 0, how far a log-ratio may rise above 0, in nats."""
    loss_agg_func: Mode = field(default="seq-mean-token-mean", kw_only=True)
    """How decisions are aggregated; see `Aggregation`."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        expect_not_negative(clip_log_ratio_low=self.clip_log_ratio_low, clip_log_ratio_high=self.clip_log_ratio_high)

    def policy_terms(self, x: LossInputs) -> Terms:
        return gmpo_terms(*x.decisions(by="GMPO"), self.clip_log_ratio_low, self.clip_log_ratio_high)

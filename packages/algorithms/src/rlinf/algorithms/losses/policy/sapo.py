"""A surrogate that saturates softly instead of being clipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.elementwise import above, bounded, keep
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.policy.gspo import SEQUENCE_MEAN, row_mean
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, Ratio, check_logprobs, log_ratio, masked_gain, observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import Aggregation, Mode, Terms, in_tiles, per_decision
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def sapo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    sequence_level: bool = False,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> LossOutput[Tensor]:
    """Soft adaptive policy optimisation: far from the old policy the gradient fades instead of stopping.

    L = −4/τ σ(τ (ρ − 1)) Â,   τ = τ_pos if Â > 0, else τ_neg,   ρ = exp(log π − log π_old)

    Gao et al., "Soft Adaptive Policy Optimization" (2025), arXiv:2511.20347. At ρ = 1 the slope is that of ρ, whatever τ is. With
    `sequence_level` all decisions of a row have one gate, that of their geometric mean s = exp(1/|y| Σₜ log ρₜ) in place of ρ: the
    soft gate on GSPO's ratio, with which the paper compares its own.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        tau_pos: τ_pos > 0, how fast the gradient of good decisions fades.
        tau_neg: τ_neg > 0, how fast that of bad decisions fades; the paper's is greater than τ_pos.
        sequence_level: whether the decisions of a row share one gate; the elements of a decision are then averaged.
        aggregation: what the total sums and the weight counts; by default rows and the mean over their decisions, as in the paper.

    Returns:
        The sum of weighted losses and its weight. Metrics: `policy_loss`; `ratio`, `ratio_abs` and `approx_kl` as those of
        `ppo_clip`; `gate`, the mean of 4 σ(τ (ρ − 1)) (1 − σ(τ (ρ − 1))), the share of ρ's gradient that is left.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a temperature is not above 0.
    """
    _check_temperatures(tau_pos, tau_neg)
    terms = partial(sapo_terms, tau_pos=tau_pos, tau_neg=tau_neg, sequence_level=sequence_level)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def sapo_terms(
    logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, tau_pos: float, tau_neg: float, sequence_level: bool
) -> Terms:
    """`sapo` before it is summed."""
    if sequence_level:
        check_logprobs("sapo", advantage, mask, logprob=logprob, logprob_old=logprob_old)
        log = bounded(row_mean(log_ratio(logprob, logprob_old, mask), mask), -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        # One ratio for a row, `[B, 1]`, beside the gains of its decisions, `[B, T]`.
        ratio = Ratio(mask.bool(), log, log.exp(), masked_gain(advantage, mask))
        seen = observed_ratio(log.detach(), mask, mask.bool().sum(1, keepdim=True))
    else:
        ratio = ratio_of("sapo", logprob, logprob_old, advantage, mask)
        seen = observed_ratio(ratio.log, mask)
    # Arithmetic instead of `where`, for its speed on a CPU.
    tau = tau_neg + above(ratio.gain, 0.0) * (tau_pos - tau_neg)
    soft = torch.sigmoid(tau * (ratio.value - 1.0))
    loss = per_decision(-4.0 / tau * soft * ratio.gain)
    with torch.no_grad():
        gate = per_decision(keep(4.0 * soft * (1.0 - soft), ratio.valid))
    return Terms(loss, {"policy_loss": loss.detach(), **seen, "gate": gate})


@dataclass(frozen=True, slots=True)
class SAPO(PolicyLoss):
    """SAPO by name: `algorithm.loss_type: sapo`."""

    by_rows: ClassVar[bool] = True

    tau_pos: float = 1.0
    """τ_pos > 0, how fast the gradient of good decisions fades."""
    tau_neg: float = 1.05
    """τ_neg > 0, how fast the gradient of bad decisions fades."""
    sequence_level: bool = False
    """Whether the decisions of a row share one gate, on the geometric mean of their ratios."""
    loss_agg_func: Mode = field(default="seq-mean-token-mean", kw_only=True)
    """How decisions are aggregated; see `Aggregation`."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        _check_temperatures(self.tau_pos, self.tau_neg)

    def policy_terms(self, x: LossInputs) -> Terms:
        return sapo_terms(*x.decisions(by="SAPO"), self.tau_pos, self.tau_neg, self.sequence_level)


def _check_temperatures(tau_pos: float, tau_neg: float) -> None:
    expect_range("tau_pos", tau_pos, 0.0, float("inf"), open_low=True)
    expect_range("tau_neg", tau_neg, 0.0, float("inf"), open_low=True)

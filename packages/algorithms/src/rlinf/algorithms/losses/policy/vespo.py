"""The policy gradient with a soft weight of whole rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import expect_not_negative, takes_tensors
from rlinf.algorithms.elementwise import keep
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, check_logprobs, log_ratio, masked_gain
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, in_tiles, like, per_decision, zero_masked
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def vespo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    c1_pos: float = 2.0,
    c2_pos: float = 3.0,
    c1_neg: float = 3.0,
    c2_neg: float = 2.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """Variational sequence-level soft policy optimisation: rows far from the old policy, on either side, teach less and less.

    L = −sg[φ(W)] Â log π,   φ(W) = W^c₁ exp(c₂ (1 − W)),   W = Πₜ πₜ / π_oldₜ

    "VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training" (2026), arXiv:2602.10693, with
    (c₁, c₂) of its own for gains (Â ≥ 0) and for losses. φ(1) = 1, and φ is greatest at W = c₁ / c₂.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`, as a rule the same for all decisions of a row; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        c1_pos: c₁ ≥ 0 of gains, how fast the weight falls towards W = 0; the paper's analysis is for c₁ ≥ 1.
        c2_pos: c₂ ≥ 0 of gains, how fast it falls where W is large.
        c1_neg: c₁ ≥ 0 of losses.
        c2_neg: c₂ ≥ 0 of losses.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight; log W is kept within ±20. Metrics: `policy_loss`; `sequence_weight`, the
        mean of φ, and `sequence_log_ratio`, that of log W.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a c is out of range; the message names it.
    """
    shape = {"c1_pos": c1_pos, "c2_pos": c2_pos, "c1_neg": c1_neg, "c2_neg": c2_neg}
    expect_not_negative(**shape)
    terms = partial(vespo_terms, **shape)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def vespo_terms(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    c1_pos: float,
    c2_pos: float,
    c1_neg: float,
    c2_neg: float,
) -> Terms:
    """`vespo` before it is summed."""
    check_logprobs("vespo", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    gain = masked_gain(advantage, mask)
    log = per_decision(log_ratio(logprob.detach(), logprob_old.detach(), mask)).sum(1, keepdim=True)
    # The product over a long row soon leaves the range of float32; beyond e²⁰ the weight is 0 for any c₂ > 0.
    log = log.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    above, below = (torch.exp(c1 * log + c2 * (1.0 - log.exp())) for c1, c2 in ((c1_pos, c2_pos), (c1_neg, c2_neg)))
    weight = torch.where(gain >= 0, above, below)
    loss = per_decision(zero_masked(logprob, mask) * like(-weight * gain, logprob))
    valid = mask.bool()
    observed = {"sequence_weight": keep(weight, valid), "sequence_log_ratio": keep(log.expand_as(weight).contiguous(), valid)}
    return Terms(loss, {"policy_loss": loss.detach(), **observed})


@dataclass(frozen=True, slots=True)
class VESPO(PolicyLoss):
    """VESPO by name: `algorithm.loss_type: vespo`."""

    by_rows: ClassVar[bool] = True

    c1_pos: float = 2.0
    """c₁ ≥ 0 of gains, how fast a row's weight falls towards W = 0."""
    c2_pos: float = 3.0
    """c₂ ≥ 0 of gains, how fast it falls where W is large."""
    c1_neg: float = 3.0
    """c₁ ≥ 0 of losses (advantages below 0), how fast a row's weight falls towards W = 0."""
    c2_neg: float = 2.0
    """c₂ ≥ 0 of losses, how fast it falls where W is large."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        expect_not_negative(c1_pos=self.c1_pos, c2_pos=self.c2_pos, c1_neg=self.c1_neg, c2_neg=self.c2_neg)

    def policy_terms(self, x: LossInputs) -> Terms:
        return vespo_terms(*x.decisions(by="VESPO"), self.c1_pos, self.c2_pos, self.c1_neg, self.c2_neg)

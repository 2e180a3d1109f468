"""Clipped surrogates of whole sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.elementwise import bounded
from rlinf.algorithms.losses.policy.ppo import Clip, ClippedLoss
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.ratio import check_logprobs, log_ratio, masked_gain, observed_ratio
from rlinf.algorithms.losses.terms import Aggregation, Mode, Terms, counted, in_tiles, per_decision
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

SEQUENCE_MEAN: Final = Aggregation("seq-mean-token-mean")


@takes_tensors
def gspo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    token_level: bool = False,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> LossOutput[Tensor]:
    """Group sequence policy optimisation: one ratio for all decisions of a row, the geometric mean of theirs.

    s = exp(1/|y| Σₜ (log πₜ − log π_oldₜ)),   L = max(−s Â, −clip(s, 1 − ε_low, 1 + ε_high) Â)

    Zheng et al., "Group Sequence Policy Optimization" (2025), arXiv:2507.18071. With `token_level` it is the paper's GSPO-token,
    sₜ = sg[s] · πₜ / sg[πₜ]: the same values, but each decision's gradient has its own advantage.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        logprob_old: the same shape, under the weights that decided.
        advantage: `[B, T]`, as a rule the same for all decisions of a row; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_ratio_low: ε_low in [0, 1]; the paper's is 3e-4.
        clip_ratio_high: ε_high ≥ 0; the paper's is 4e-4.
        clip_ratio_c: c > 1, the bound of the dual clip; None for none, as in the paper.
        token_level: whether a decision's gradient is scaled with its own advantage (GSPO-token).
        aggregation: what the total sums and the weight counts; by default rows, as in the paper.

    Returns:
        The sum of weighted losses and its weight. Metrics as those of `ppo_clip`, of the ratio s.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a bound is out of its range.
    """
    clip = Clip(clip_ratio_low, clip_ratio_high, clip_ratio_c)
    terms = partial(gspo_terms, clip=clip, token_level=token_level)
    return in_tiles(terms, aggregation, logprob=logprob, logprob_old=logprob_old, advantage=advantage, mask=mask)


def gspo_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, clip: Clip, token_level: bool) -> Terms:
    """`gspo` before it is summed."""
    check_logprobs("gspo", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    gain = masked_gain(advantage, mask)
    each = log_ratio(logprob, logprob_old, mask)
    log = bounded(row_mean(each, mask), *clip.log_bounds)
    if token_level:
        own = per_decision(each)
        # The value of s, with the gradient of the decision's own log-probability.
        log = log.detach() + (own - own.detach())
    loss, shares = clip.surrogate(log.exp(), gain)
    # A row's one ratio counts once for each of its decisions, so that metrics are means over decisions as elsewhere.
    seen = observed_ratio(log.detach()[:, :1], mask, mask.bool().sum(1, keepdim=True))
    return Terms(loss, {"policy_loss": loss.detach(), **seen, **counted(shares)})


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean over a row's unmasked decisions, `[B, 1]`, of `[B, T, …]` that is 0 where masked; 0 for a row without any."""
    count = mask.bool().sum(1, keepdim=True).clamp(min=1)
    return x.flatten(1).sum(1, keepdim=True) / (count * x.shape[2:].numel())


@dataclass(frozen=True, slots=True)
class GSPO(ClippedLoss):
    """GSPO by name: `algorithm.loss_type: gspo`."""

    clip_ratio_low: float = 3e-4
    """ε_low in [0, 1], how far the ratio of a row may fall below 1."""
    clip_ratio_high: float = 4e-4
    """ε_high ≥ 0, how far the ratio of a row may rise above 1."""
    token_level: bool = False
    """Whether a decision's gradient is scaled with its own advantage (GSPO-token)."""
    loss_agg_func: Mode = field(default="seq-mean-token-mean", kw_only=True)
    """How decisions are aggregated; see `Aggregation`."""

    def policy_terms(self, x: LossInputs) -> Terms:
        return gspo_terms(*x.decisions(by="GSPO"), self.bounds(), self.token_level)

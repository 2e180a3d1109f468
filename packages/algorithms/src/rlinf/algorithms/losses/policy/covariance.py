"""Surrogates that spare the few decisions that take a policy's entropy away.

Which decisions these are depends on means over all decisions handed in. So, unlike any other loss here, these two do not add up
over micro-batches exactly; they are functions, and no loss by name.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_ordered, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, keep
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.algorithms.losses.policy.ppo import Clip
from rlinf.algorithms.losses.ratio import check_logprobs, masked_gain, observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, counted, in_tiles, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
@no_grad
def covariance(logprob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """How much each decision adds to the covariance of log-probability and advantage, which is how fast entropy falls.

    cₜ = (log πₜ − mean log π) (Âₜ − mean Â), means over unmasked decisions

    Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2025), arXiv:2505.22617.

    Args:
        logprob: `[B, T]`, under the current weights.
        advantage: `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided.

    Returns:
        `[B, T]` without gradient, 0 where masked.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("covariance(logprob)", logprob, mask.shape)
    expect_shape("covariance(advantage)", advantage, mask.shape)
    count = mask.bool().sum().clamp(min=1)
    # A tensor of our own, so that what follows can be done in place.
    found = zero_masked(logprob, mask)
    found -= found.sum() / count
    gain = masked_gain(advantage, mask)
    found *= gain - gain.sum() / count
    return keep(found, mask.bool())


@takes_tensors
def kl_cov(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    share: float = 2e-4,
    kl_coef: float = 1.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """KL-Cov: the decisions of the greatest covariance are held back by a divergence; nothing is clipped.

    L = −ρ Â + β |log ρ| for the max(1, ⌊share · n⌋) decisions of n whose `covariance` is greatest, −ρ Â for the others

    Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2025), arXiv:2505.22617.

    Args:
        logprob: `[B, T]`, under the current weights; differentiable.
        logprob_old: `[B, T]`, under the weights that decided.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        share: how many decisions are held back, in [0, 1].
        kl_coef: β ≥ 0.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`, `ratio`, `ratio_abs` and `approx_kl` as those of
        `ppo_clip`; `chosen_fraction`, the share of decisions that were held back.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of its range.
    """
    expect_range("share", share, 0.0, 1.0)
    expect_range("kl_coef", kl_coef, 0.0, float("inf"))
    check_logprobs("kl_cov", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    chosen = _greatest(covariance(logprob, advantage, mask), mask.bool(), _number(mask, share))
    tensors = {"logprob": logprob, "logprob_old": logprob_old, "advantage": advantage, "chosen": chosen}
    return in_tiles(partial(_kl_cov_terms, kl_coef=kl_coef), aggregation, mask=mask, **tensors)


def _kl_cov_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, chosen: Tensor, kl_coef: float) -> Terms:
    ratio = ratio_of("kl_cov", logprob, logprob_old, advantage, mask)
    loss = kl_coef * keep(ratio.log, chosen).abs() - ratio.value * ratio.gain
    return Terms(loss, {"policy_loss": loss.detach(), **observed_ratio(ratio.log, mask), "chosen_fraction": chosen.sum()})


@takes_tensors
def clip_cov(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    generator: torch.Generator | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """Clip-Cov: PPO's surrogate without some decisions of great covariance, picked at random.

    L = 0 for max(1, ⌊share · n⌋) decisions of n, drawn from those with low < `covariance` < high that no bound holds anyway

    Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2025), arXiv:2505.22617.

    Args:
        logprob: `[B, T]`, under the current weights; differentiable.
        logprob_old: `[B, T]`, under the weights that decided.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        clip_ratio_low: ε_low in [0, 1].
        clip_ratio_high: ε_high ≥ 0.
        share: how many decisions are left out, in [0, 1].
        low: the covariance from which on a decision may be left out, at most `high`.
        high: the covariance up to which it may.
        generator: draws; None for torch's own.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight, which counts those left out. Metrics as those of `ppo_clip`, and
        `chosen_fraction`, the share of decisions that were left out.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of its range.
    """
    expect_range("share", share, 0.0, 1.0)
    expect_ordered("clip_cov(low)", low, high)
    clip = Clip(clip_ratio_low, clip_ratio_high)
    check_logprobs("clip_cov", advantage, mask, logprob=logprob, logprob_old=logprob_old)
    score = covariance(logprob, advantage, mask)
    eligible = mask.bool() & (score > low) & (score < high)
    ratio = ratio_of("clip_cov", logprob.detach(), logprob_old.detach(), advantage, mask)
    # What a bound holds has no gradient already; dropping it would use up the share for nothing.
    eligible &= clip.surrogate(ratio.value, ratio.gain)[1]["clip_fraction"] == 0
    # Where the generator is: torch refuses one of another device.
    lot = torch.rand(mask.shape, generator=generator, device=None if generator is None else generator.device).to(score)
    chosen = _greatest(lot, eligible, _number(mask, share))
    tensors = {"logprob": logprob, "logprob_old": logprob_old, "advantage": advantage, "chosen": chosen}
    return in_tiles(partial(_clip_cov_terms, clip=clip), aggregation, mask=mask, **tensors)


def _clip_cov_terms(logprob: Tensor, logprob_old: Tensor, advantage: Tensor, mask: Tensor, chosen: Tensor, clip: Clip) -> Terms:
    ratio = ratio_of("clip_cov", logprob, logprob_old, advantage, mask)
    loss, shares = clip.surrogate(ratio.value, ratio.gain)
    loss = keep(loss, ~chosen)
    observed = {"policy_loss": loss.detach(), **observed_ratio(ratio.log, mask), **counted(shares)}
    return Terms(loss, {**observed, "chosen_fraction": chosen.sum()})


def _number(mask: Tensor, share: float) -> int:
    # At least one, even of a short batch.
    return max(1, int(share * int(mask.bool().sum())))


def _greatest(score: Tensor, eligible: Tensor, number: int) -> Tensor:
    """Where the greatest scores of those eligible are, `[B, T]` bool: `number` of them, or all that there are."""
    ranked = torch.where(eligible, at_least_float32(score), -torch.inf).flatten()
    # Fewer may be eligible than `number`; what is found beside them is dropped below.
    found = ranked.topk(min(number, ranked.numel())).indices
    chosen = torch.zeros_like(ranked, dtype=torch.bool).index_fill(0, found, True).reshape(eligible.shape)
    return chosen & eligible

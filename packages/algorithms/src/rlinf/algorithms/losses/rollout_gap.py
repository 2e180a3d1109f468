"""How far a rollout engine is from the trainer, as numbers to log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import difference
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND, at_granularity
from rlinf.algorithms.losses.terms import zero_masked
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
@no_grad
def mismatch(logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far trainer and rollout engine are apart, decision by decision.

    With d = log π_train(a) − log π_rollout(a) and a ~ π_rollout:

    | name | of each decision | its mean estimates |
    |---|---|---|
    | `rollout_kl` | −d | KL(π_rollout ‖ π_train); also the difference of the log-perplexities |
    | `rollout_k3` | eᵈ − 1 − d | the same, never negative |
    | `rollout_chi2` | e²ᵈ − 1 | χ²(π_train ‖ π_rollout), the variance of the ratio |

    Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.

    Returns:
        Each `[B, T]`, 0 where masked; d is kept within ±20 before it is exponentiated.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    d = joint(logprob_train, logprob_rollout, mask, by="mismatch")
    # Only what is exponentiated is bounded; the mean of −d stays exact.
    bounded = d.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return {"rollout_kl": -d, "rollout_k3": bounded.expm1() - bounded, "rollout_chi2": (2.0 * bounded).expm1()}


@takes_tensors
@no_grad
def perplexity(logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How surprised trainer and rollout engine are of each row, and how far apart their surprises are.

    With ℓ = −1/|y| Σₜ log π(yₜ), by the trainer and by the rollout engine, and d = log π_train(a) − log π_rollout(a):

    | name | of each row |
    |---|---|
    | `training_log_ppl`, `rollout_log_ppl` | ℓ_train, ℓ_rollout |
    | `training_ppl`, `rollout_ppl` | exp ℓ, the perplexity |
    | `log_ppl_diff`, `log_ppl_abs_diff` | ℓ_train − ℓ_rollout, and its absolute value |
    | `ppl_ratio` | exp(ℓ_train − ℓ_rollout) |
    | `rollout_chi2_seq` | exp(2 Σₜ dₜ) − 1, whose mean estimates χ²(π_train ‖ π_rollout) of whole rows |

    Jelinek et al., "Perplexity—a measure of the difficulty of speech recognition tasks" (1977), doi:10.1121/1.2016299. Names are
    those of verl's rollout correction; its `chi2_token` is `rollout_chi2` of `mismatch`.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.

    Returns:
        Each `[B]`, 0 for a row without decisions; the exponents ℓ, their difference and Σₜ dₜ are kept within ±20.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    gap = joint(logprob_train, logprob_rollout, mask, by="perplexity")
    count = mask.bool().sum(1)
    train, rollout = (-_row_sum(x, mask) / count.clamp(min=1) for x in (logprob_train, logprob_rollout))
    # From the gap, in which −∞ less −∞ is 0; `train - rollout` would be NaN.
    apart = -gap.sum(1) / count.clamp(min=1)
    found = {
        "training_ppl": _bounded(train).exp(),
        "training_log_ppl": train,
        "rollout_ppl": _bounded(rollout).exp(),
        "rollout_log_ppl": rollout,
        "log_ppl_diff": apart,
        "log_ppl_abs_diff": apart.abs(),
        "ppl_ratio": _bounded(apart).exp(),
        "rollout_chi2_seq": (2.0 * _bounded(gap.sum(1))).expm1(),
    }
    return {name: torch.where(count > 0, x, 0.0) for name, x in found.items()}


@no_grad
def joint(train: Tensor, rollout: Tensor, mask: Tensor, *, by: str) -> Tensor:
    """The log-ratio of whole decisions, `[B, T]`, 0 where masked."""
    if not 2 <= train.dim() <= 4:
        raise ShapeError(f"{by}(logprob_train)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(train.shape)}")
    expect_shape(f"{by}(logprob_rollout)", rollout, train.shape)
    expect_shape(f"{by}(mask)", mask, train.shape[:2])
    return at_granularity(zero_masked(difference(train, rollout), mask), "chunk_level")


def _row_sum(logprob: Tensor, mask: Tensor) -> Tensor:
    """`[B]`, the log-probability of a row."""
    return zero_masked(logprob, mask).flatten(1).sum(1)


def _bounded(x: Tensor) -> Tensor:
    return x.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)

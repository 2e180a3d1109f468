"""Supervised fine-tuning from log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, summed, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def sft_loss(
    logprob: Tensor,
    mask: Tensor,
    *,
    logprob_mean: Tensor | None = None,
    label_smoothing: float = 0.0,
    dft: bool = False,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """The cross-entropy of given tokens.

    L = −w ((1 − α) log π(yₜ) + α meanᵥ log π(v)),   w = 1, or with `dft` the constant π(yₜ)

    Label smoothing: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2016), section 7,
    arXiv:1512.00567. Dynamic fine-tuning: Wu et al., "On the Generalization of SFT" (2025), eq. 9, arXiv:2508.05629.

    Args:
        logprob: `[B, T]`, log π of the tokens that were given; differentiable.
        mask: `[B, T]` bool, False for prompts and padding.
        logprob_mean: `[B, T]`, the mean over the vocabulary of log π(v); needed, and allowed, with label smoothing alone.
        label_smoothing: α in [0, 1].
        dft: whether each token is weighed with its own probability, so that the gradient is that of −π(yₜ).
        aggregation: what the total sums and the weight counts; by default tokens.

    Returns:
        The sum over unmasked tokens and its weight. Metrics: `sft_loss`; `nll`, the mean of −log π(yₜ), whose exponential is the
        perplexity.

    Raises:
        ShapeError: a shape disagrees, or `logprob_mean` is missing; the message names the argument.
        ConfigError: a parameter is out of range; the message names it.
    """
    expect_range("label_smoothing", label_smoothing, 0.0, 1.0)
    if (label_smoothing > 0.0) != (logprob_mean is not None):
        found = "None" if logprob_mean is None else "a tensor"
        raise ShapeError("sft_loss(logprob_mean)", f"expected a tensor with label smoothing and None without, found {found}")
    expect_shape("sft_loss(logprob)", logprob, mask.shape)
    logprob = zero_masked(logprob, mask)
    loss = -logprob
    if logprob_mean is not None:
        expect_shape("sft_loss(logprob_mean)", logprob_mean, mask.shape)
        loss = torch.lerp(loss, -zero_masked(logprob_mean, mask), label_smoothing)
    if dft:
        loss = loss * logprob.detach().exp()
    return summed(Terms(loss, {"sft_loss": loss.detach(), "nll": -logprob.detach()}), mask, aggregation)

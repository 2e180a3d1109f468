"""The distribution of an action token: a softmax over the bins alone, drawn from and scored in one way."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.models.openvla.bins import ActionBins

NEVER = -1e4
"""The log-probability of a bin that has left the top k: e to this power is 0, and one can calculate with it."""


def bin_logprobs(logits: Tensor, bins: ActionBins, *, temperature: Tensor, top_k: int) -> Tensor:
    """A softmax over the bins: all other ids have probability 0, and so have all but the k greatest.

    log p(bin) = ℓ_bin / τ − log Σ exp(ℓ / τ)

    The vocabulary is cut before the k greatest are chosen, so that there always are k.

    Args:
        logits: `[B, *, R]`, ℓ of the whole embedding.
        bins: which rows are actions.
        temperature: `[B]`, τ of each sample.
        top_k: k; 0 keeps all.

    Returns:
        `[B, *, n]` float32, in nats; the bin of token id i is i − `bins.first`.
    """
    scale = temperature.view(-1, *[1] * (logits.dim() - 1))
    warped = logits[..., bins.first : bins.vocabulary].float() / scale
    if 0 < top_k < bins.count:
        least = warped.topk(top_k, dim=-1).values[..., -1:]
        # Bins that equal the k-th all stay: which of them topk lists must not decide a probability.
        warped = warped.masked_fill(warped < least, -torch.inf)
    return warped.log_softmax(-1)


def chosen(logprobs: Tensor, tokens: Tensor, bins: ActionBins) -> Tensor:
    """The log-probability of each token `[B, *]`, of distributions `[B, *, n]`; `NEVER` at least."""
    return logprobs.gather(-1, (tokens - bins.first)[..., None]).squeeze(-1).clamp(min=NEVER)


def bin_entropy(logprobs: Tensor) -> Tensor:
    """−Σ p log p of distributions `[*, n]`, in nats; 0 log 0 = 0, with a gradient of 0."""
    finite = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return -(logprobs.exp() * finite).sum(-1)


def draw(logprobs: Tensor, noise: Tensor | None, bins: ActionBins) -> Tensor:
    """Token ids `[*]` from distributions `[*, n]`.

    Args:
        logprobs: log p.
        noise: `[*, n]` of Exp(1): argmax p / noise is a draw from p; the most likely token if None.
        bins: which ids they are.
    """
    score = logprobs if noise is None else logprobs - noise.log()
    return score.argmax(-1) + bins.first

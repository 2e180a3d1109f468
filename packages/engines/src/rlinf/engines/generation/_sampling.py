"""Draws one token for each row, from a number that depends on nothing but the row's seed and its position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlinf.core.language.generation import SamplingConfig


class Cuts(NamedTuple):
    """How the rows of a batch are drawn."""

    temperature: Tensor
    """`[n]`; 1 where the most likely token is taken."""
    greedy: Tensor | None
    """`[n]` bool; None if no row is."""
    top_k: Tensor | None
    """`[n]`; None if no row is cut by `top_k` or `top_p`."""
    top_p: Tensor | None
    """`[n]`, 2 where nothing is cut."""


def cuts(samplings: list[SamplingConfig], vocabulary: int, device: torch.device) -> Cuts:
    """The tensors of a batch."""

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    greedy = [s.temperature == 0 for s in samplings]
    cut = any(s.top_k is not None or s.top_p < 1 for s in samplings)
    return Cuts(
        temperature=column([s.temperature or 1.0 for s in samplings], torch.float32),
        greedy=column(list(greedy), torch.bool) if any(greedy) else None,
        top_k=column([s.top_k or vocabulary for s in samplings], torch.long) if cut else None,
        top_p=column([s.top_p if s.top_p < 1 else 2.0 for s in samplings], torch.float64) if cut else None,
    )


def uniforms(seed: int, count: int) -> list[float]:
    """One number in [0, 1) for each position of a response; the t-th does not depend on how many there are."""
    return np.random.Generator(np.random.Philox(seed)).random(count).tolist()


def draw(logits: Tensor, cuts: Cuts, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling in the order of the vocabulary.

    Args:
        logits: `[n, V]`.
        cuts: how.
        uniform: `[n]` float64 in [0, 1).

    Returns:
        Tokens `[n]`, and their log-probabilities `[n]` float32, tempered and before the cuts.
    """
    logprobs = torch.log_softmax(logits.float() / cuts.temperature[:, None], -1)
    # In float32, the sum over a whole vocabulary loses the small ones.
    weights = logprobs.double().exp_()
    if cuts.top_k is not None and cuts.top_p is not None:
        weights = _cut(weights, cuts.top_k, cuts.top_p)
    cdf = weights.cumsum(-1)
    # The sum is not exactly 1, and less after a cut. With `right`, a token of weight 0 is passed over.
    tokens = torch.searchsorted(cdf, (uniform * cdf[:, -1])[:, None], right=True).squeeze(-1)
    # Rounding may bring the number to the very end.
    tokens = tokens.clamp_max_(logits.shape[-1] - 1)
    if cuts.greedy is not None:
        tokens = torch.where(cuts.greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _cut(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero where a token may not be drawn; the likeliest one always may."""
    ranked, order = torch.sort(weights, dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[-1], device=weights.device)
    # The sum before a token counts, so that the one that crosses the bound is kept.
    kept = (rank < top_k[:, None]) & (ranked.cumsum(-1) - ranked < top_p[:, None])
    return torch.zeros_like(weights).scatter_(-1, order, ranked * kept)

"""Log-probability, entropy and Σ π² of tokens from hidden states, a few rows of logits at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

Head = Callable[[Tensor], Tensor]
"""Logits `[n, V]` of hidden states `[n, W]`."""
Scored = tuple[Tensor, Tensor, Tensor | None]
"""Log-probability, entropy and Σ π², see `score_tokens`."""

_checkpointing: Any = torch.utils.checkpoint


def score_tokens(hidden: Tensor, tokens: Tensor, head: Head, *, temperature: float, chunk: int) -> Scored:
    """The log-probability of a token, and of what it was drawn from, π = softmax(head(hidden) / temperature), entropy and Σ π².

    Logits live for `chunk` rows only: they are computed again on the way back, where their gradient goes straight into the
    hidden states and the weights of the head. Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016),
    arXiv:1604.06174; the same for a vocabulary: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024),
    arXiv:2411.09009.

    Args:
        hidden: `[n, W]`.
        tokens: `[n]`.
        head: any differentiable function, parameters and all.
        temperature: that of the rollout.
        chunk: rows at a time.

    Returns:
        Three of `[n]`, float32 at least, the first two in nats. The last is None where a gradient is recorded: nobody learns from
        it, and there the probabilities that it would overwrite are kept.
    """

    def scored(rows: Tensor, chosen: Tensor) -> Scored:
        return _score(head(rows), chosen, temperature)

    parts: list[Scored] = []
    # At least one pass, also over no tokens: a sharded head must run on every rank.
    for start in range(0, max(len(tokens), 1), chunk):
        rows, chosen = hidden[start : start + chunk], tokens[start : start + chunk]
        # A head draws no random numbers, so no generator's state is kept.
        parts.append(_checkpointing.checkpoint(scored, rows, chosen, use_reentrant=False, preserve_rng_state=False))
    logprob, entropy, squares = zip(*parts, strict=True)
    return torch.cat(logprob), torch.cat(entropy), None if squares[0] is None else torch.cat(squares)


def _score(logits: Tensor, tokens: Tensor, temperature: float) -> Scored:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    logprobs = torch.log_softmax(logits, -1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).sum(-1)
    # In place: a chunk of logits is large, and a further copy of it would be the most that is ever held.
    squares = None if torch.is_grad_enabled() else probabilities.square_().sum(-1)
    return logprobs.gather(-1, tokens[:, None]).squeeze(-1), entropy, squares

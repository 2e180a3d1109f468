"""The sequence that parallel decoding reads: where everything lies, who sees whom, and where an answer is found.

    [BOS | patches of each camera | proprio | padding … text | slot 0 … slot A·K − 1 | stop]

Kim, Finn, Liang, "Fine-Tuning Vision-Language-Action Models: Optimizing Speed and Success" (2025), section IV, arXiv:2502.19645.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One sequence for each row; S tokens of width L."""

    embeddings: Tensor
    """`[B, S, L]`."""
    valid: Tensor
    """`[B, S]` bool, False where there is padding."""
    first_slot: int
    """The index of slot 0; the same for all rows, since text is padded on its left."""

    def attention(self) -> Tensor:
        """`[B, 1, S, S]`, what to add to attention scores: 0 for whom a token sees, the least number for whom it doesn't.

        Every token sees every other that is not padding, also those that follow it. Padding sees the same, so that no row of
        scores is empty; nobody reads what it computes.
        """
        rows, size = self.valid.shape
        dtype = self.embeddings.dtype
        hidden = torch.zeros(rows, size, dtype=dtype, device=self.valid.device).masked_fill(~self.valid, torch.finfo(dtype).min)
        return hidden[:, None, None, :].expand(rows, 1, size, size)

    def positions(self) -> Tensor:
        """`[B, S]` int64, the place of each token among those that are not padding."""
        return (self.valid.long().cumsum(1) - 1).clamp(min=0)

    def answers(self, hidden: Tensor, slots: int) -> Tensor:
        """What the model says of each slot, `[B, slots, L]` of `[B, S, L]`.

        As in a causal model, the answer for a token is found one position before it: that of slot i at `first_slot` − 1 + i.
        """
        return hidden[:, self.first_slot - 1 : self.first_slot - 1 + slots]


def lay_out(bos: Tensor, seen: Tensor, text: Tensor, text_valid: Tensor, stop: Tensor, *, slots: int) -> Layout:
    """Puts the parts in a row, with zeros for the slots.

    Columns that are padding in all rows are left out: they would cost and change nothing.

    Args:
        bos: `[L]`, the embedding of the first token.
        seen: `[B, P, L]`, patches and proprioception.
        text: `[B, N, L]`, the prompt without its BOS, padded on the left.
        text_valid: `[B, N]` bool, False where `text` is padding.
        stop: `[L]`, the embedding of the last token.
        slots: A·K.
    """
    rows, width = len(text), text.shape[-1]
    # A batch of no rows has no maximum.
    used = int(text_valid.sum(1).max()) if rows else 0
    text, text_valid = text[:, text.shape[1] - used :], text_valid[:, text_valid.shape[1] - used :]
    blank = text.new_zeros(rows, slots, width)
    parts = [bos.expand(rows, 1, width), seen, text, blank, stop.expand(rows, 1, width)]
    before, after = (text_valid.new_ones(rows, size) for size in (1 + seen.shape[1], slots + 1))
    return Layout(
        embeddings=torch.cat([part.to(text.dtype) for part in parts], 1),
        valid=torch.cat([before, text_valid, after], 1),
        first_slot=1 + seen.shape[1] + used,
    )


def mean_language(bos: Tensor, text: Tensor, text_valid: Tensor, stop: Tensor) -> Tensor:
    """The mean embedding of all that is language, `[B, L]`: BOS, the text without its padding, and the stop token."""
    weight = text_valid.to(text.dtype)[..., None]
    return ((text * weight).sum(1) + bos + stop) / (weight.sum(1) + 2.0)

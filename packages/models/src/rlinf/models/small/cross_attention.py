"""Instructions, and attention from one modality to another."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rlinf.models.small.word_hashing import PAD

_torch: Any = torch


class InstructionEncoder(nn.Module):
    """The words of an instruction, each in the light of the others: an embedding and a bidirectional LSTM.

    Args:
        vocab_size: numbers of words are below it.
        word_size: of an embedding.
        hidden: H, of the LSTM in each direction.
    """

    def __init__(self, vocab_size: int, word_size: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, word_size, padding_idx=PAD)
        self.lstm = nn.LSTM(word_size, hidden, batch_first=True, bidirectional=True)
        self.width = 2 * hidden

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Encodes instructions; equal ones only once.

        Args:
            words: `[n, L]` int, `PAD` after the last word.

        Returns:
            `[n, M, 2 H]`, M the length of the longest instruction, and `[n, M]` bool: which are words. An empty instruction counts
            as one word, `PAD`.
        """
        different, which = _torch.unique(words, dim=0, return_inverse=True)
        # Sequences of no words can't be packed.
        lengths = (different != PAD).sum(1).clamp_min(1)
        embedded = self.embedding(different.long())
        # torch wants the lengths on the CPU, wherever the words are.
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        encoded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        known = torch.arange(encoded.shape[1], device=words.device) < lengths[:, None]
        return encoded[which], known[which]


class Attention(nn.Module):
    """What a query asks of a set of items: y = Σᵢ softmax(qᵀ kᵢ / √d) vᵢ,   q = W_q h,   kᵢ = W_k xᵢ,   vᵢ = W_v xᵢ.

    Vaswani et al., "Attention Is All You Need" (2017), eq. 1, arXiv:1706.03762, with one head.

    Args:
        query_size: of h.
        item_size: of xᵢ.
        size: d, of queries, keys and the result.
    """

    def __init__(self, query_size: int, item_size: int, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, size)
        # A key's bias would add the same to every score.
        self.key = nn.Linear(item_size, size, bias=False)
        self.value = nn.Linear(item_size, size)

    def forward(self, query: Tensor, items: Tensor, known: Tensor | None = None) -> Tensor:
        """`[n, d]`.

        Args:
            query: `[n, query_size]`.
            items: `[n, P, item_size]`.
            known: `[n, P]` bool, the items that are there, at least one in each row; all if None.
        """
        keys = self.key(items)
        scores = torch.einsum("nd,npd->np", self.query(query), keys) / math.sqrt(keys.shape[-1])
        if known is not None:
            scores = scores.masked_fill(~known, -torch.inf)
        return torch.einsum("np,npd->nd", scores.softmax(-1), self.value(items))

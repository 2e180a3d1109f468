"""Words as numbers, by hashing: a tokenizer without a vocabulary."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

PAD = 0
"""What follows the last word."""

_WORD = re.compile(r"\w+|[^\w\s]")


def hash_words(texts: Sequence[str], *, vocab_size: int, max_words: int) -> Tensor:
    """The words and marks of texts as numbers that are the same on every machine.

    Weinberger et al., "Feature Hashing for Large Scale Multitask Learning" (2009), arXiv:0902.2206: no vocabulary is needed, and
    two words share a number with probability 1 / (vocab_size − 1).

    Args:
        texts: B of them; upper and lower case are the same.
        vocab_size: numbers are below it.
        max_words: L; what is beyond is not read.

    Returns:
        `[B, L]` int32, 1 … vocab_size − 1, then `PAD`.
    """
    rows = torch.full((len(texts), max_words), PAD, dtype=torch.int32)
    for row, text in zip(rows, texts, strict=True):
        numbers = [_number(word, vocab_size) for word in _WORD.findall(text.lower())[:max_words]]
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return rows


@lru_cache(maxsize=65_536)
def _number(word: str, vocab_size: int) -> int:
    # Not hash(), which is another one in every process.
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    # From 1 on, for 0 is PAD.
    return 1 + int.from_bytes(digest, "little") % (vocab_size - 1)

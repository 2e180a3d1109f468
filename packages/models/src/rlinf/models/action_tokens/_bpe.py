"""Byte-pair encoding by the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

_tokenizer: Any = Tokenizer
_trainer: Any = BpeTrainer


def train(texts: Sequence[str], alphabet: Sequence[str], vocab_size: int) -> Any:
    """Merges the most frequent neighbours of the texts until there are `vocab_size` tokens, or nothing is left to merge."""
    tokenizer = _tokenizer(BPE())
    trainer = _trainer(vocab_size=vocab_size, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def restore(text: str) -> Any:
    """The tokenizer of a JSON text.

    Raises:
        ValueError: it is none.
    """
    try:
        return _tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise ValueError(str(error)) from error

"""Which tokens a model without a folder has; light to import."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final, Literal

from rlinf.core.errors import ConfigError

SPECIAL: Final = ("<pad>", "<bos>", "<eos>", "<image>")
"""Ids 0 to 3 of every tokenizer that is made here."""
PRINTABLE: Final = string.digits + string.ascii_letters + string.punctuation + " \n"
BYTES: Final = 256
IMAGE_TOKENS: Final = 3
"""What a vision-language model has beside its tokenizer's: for videos, and where images begin and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensConfig:
    """`actor.model.tokens`: the tokenizer of a model with random weights."""

    kind: Literal["characters", "bytes"] = "bytes"
    """"characters": a token for each of `alphabet`; "bytes": pairs of bytes merged as the texts of the task suggest, which can
    write any text."""
    alphabet: str = PRINTABLE
    """What "characters" can write."""
    size: int = 384
    """The most entries that "bytes" may have, special ones included; the model has this many."""

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise ConfigError("alphabet", f"expected different characters, found {self.alphabet!r}")
        if self.size < BYTES + len(SPECIAL):
            raise ConfigError("size", f"expected at least {BYTES + len(SPECIAL)}, found {self.size}", "Every byte has an entry.")

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return self.size if self.kind == "bytes" else len(SPECIAL) + len(self.alphabet)

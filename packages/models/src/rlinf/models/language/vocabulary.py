"""Which tokens a model without a folder has, and which end a response where there is one; light to import."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from rlinf.core.errors import CheckpointError, ConfigError

SPECIAL: Final = ("<pad>", "<bos>", "<eos>", "<image>")
"""Ids 0 to 3 of every tokenizer that is made here."""
PRINTABLE: Final = string.digits + string.ascii_letters + string.punctuation + " \n"
BYTES: Final = 256
_SHOWN: Final = 20
"""Characters that a message names."""
IMAGE_TOKENS: Final = 3
"""What a vision-language model has beside its tokenizer's: for videos, and where images begin and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensConfig:
    """`actor.model.tokens`: the tokenizer of a model with random weights."""

    kind: Literal["characters", "bytes"] = "bytes"
    """"characters": a token for each of `alphabet`; "bytes": pairs of bytes merged as the texts of the task suggest, which can
    write any text."""
    alphabet: str = PRINTABLE
    """The characters that a model with `kind: characters` can read and write; not looked at with "bytes"."""
    size: int = 384
    """The most entries that "bytes" may have, special ones included; the model has this many, and one for each of `words`."""
    words: tuple[str, ...] = ()
    """Texts that are one token each, as the tags of tool calls are in many models."""

    def __post_init__(self) -> None:
        known = {*SPECIAL, *(self.alphabet if self.kind == "characters" else "")}
        if len(set(self.words)) != len(self.words) or not all(self.words) or known & set(self.words):
            raise ConfigError("words", f"expected different texts that are no tokens yet, found {list(self.words)}")
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise ConfigError("alphabet", f"expected different characters, found {self.alphabet!r}")
        if self.size < BYTES + len(SPECIAL):
            raise ConfigError("size", f"expected at least {BYTES + len(SPECIAL)}, found {self.size}", "Every byte has an entry.")

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return (self.size if self.kind == "bytes" else len(SPECIAL) + len(self.alphabet)) + len(self.words)

    def expect_writable(self, corpus: Iterable[str]) -> None:
        """Refuses texts with characters that "characters" can't write.

        Raises:
            ConfigError: with these characters.
        """
        foreign = sorted({character for text in self.between_words(corpus) for character in text} - set(self.alphabet))
        if foreign:
            found = f"the texts also have {''.join(foreign[:_SHOWN])!r}"
            raise ConfigError("actor.model.tokens.alphabet", f"expected all characters of the texts, {found}", "Add them.")

    def between_words(self, corpus: Iterable[str]) -> Iterable[str]:
        """Texts without `words`, which are tokens of their own."""
        if not self.words:
            return corpus
        # Longer words first: of several alternatives an expression takes the first that fits.
        words = re.compile("|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True)))
        return (part for text in corpus for part in words.split(text) if part)


def folder_end_tokens(folder: Path) -> tuple[int, ...]:
    """The tokens that end a response of a model of transformers: `eos_token_id`, which is one or several, as its folder has it.

    `generation_config.json` decides, and `config.json` where that says nothing.

    Raises:
        CheckpointError: a file is no JSON, or has something else there.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content: Any = json.loads(file.read_text(encoding="utf-8"))
            own: object = content.get("eos_token_id")
            # Models that also see have it in the section of their text.
            found = content.get("text_config", {}).get("eos_token_id") if own is None else own
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(str(file), f"can't be read ({error})", "Use another checkpoint.") from error
        tokens = cast("list[object]", found) if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in tokens):
            raise CheckpointError(f"{file}: eos_token_id", f"expected token ids, found {found!r}", "Write one id, or a list.")
        if tokens:
            return tuple(cast("list[int]", tokens))
    return ()

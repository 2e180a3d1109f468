"""Which model turns texts into vectors, and how; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A model of transformers that turns texts into vectors, such as E5 or BGE."""

    model_path: str
    """Its folder, with its tokenizer; nothing is downloaded."""
    pooling: Literal["mean", "cls", "last"] = "mean"
    """The vector of a text: "mean" of all its tokens, that of the first token ("cls"), or that of the last one ("last")."""
    query_prefix: str = "query: "
    """What is put before queries; E5 was trained with this."""
    passage_prefix: str = "passage: "
    """What is put before passages; E5 was trained with this."""
    max_length: int = 512
    """Tokens of a text, the rest is cut off."""
    batch_size: int = 64
    """Passages that are embedded together."""
    device: str = "cpu"
    """The device of torch on which texts are embedded, such as `cuda:0`."""

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls", "last"):
            raise ConfigError("pooling", f"expected mean, cls or last, found '{self.pooling}'")
        expect_range("max_length", self.max_length, 1, 2**20)
        expect_range("batch_size", self.batch_size, 1, 2**20)

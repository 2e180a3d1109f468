"""Action chunks as few tokens: frequencies, whole numbers, byte pairs.

    actions [H, A] in ±1 → DCT over time → round(γ C) [H, A] → low frequencies of all dimensions first → BPE → tokens

Pertsch et al., "FAST: Efficient Action Tokenization for Vision-Language-Action Models" (2025), arXiv:2501.09747. Unlike theirs, the
alphabet holds every whole number that a chunk in ±1 can give, so that nothing is beyond what was seen in `fit`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf.core.config import expect_range
from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.core.registry import require_modules

FORMAT: Final = "rlinf-fast-tokens"
_FIRST: Final = 0xE000
"""Whole numbers become characters of Unicode's private use area, which no text has."""
_CHARACTERS: Final = 0xF8FF - _FIRST + 1


@dataclass(frozen=True, slots=True)
class FastActionTokenizer:
    """Chunks of one length to tokens and back; made by `fit` or `load`.

    What comes back differs by no more than half a quantisation step, ½ / γ, in the root of the mean square over a chunk's time, and
    by √H / (2 γ) in any single number: the transform is orthonormal, and only rounding loses something.
    """

    horizon: int
    """H, the steps of a chunk."""
    size: int
    """A, the numbers of a step."""
    scale: float
    """γ, quantisation steps in one unit of a coefficient."""
    bpe: Any
    """The `tokenizers.Tokenizer`."""

    @classmethod
    def fit(cls, actions: ArrayLike, *, vocab_size: int = 1024, scale: float = 10.0) -> FastActionTokenizer:
        """Learns which coefficients follow each other.

        Args:
            actions: `[N, H, A]`, normalised to ±1, as `Normalizer` does with quantiles; clipped beyond.
            vocab_size: tokens, at least the 2 ⌈γ √H⌉ + 1 whole numbers.
            scale: γ; more of it is finer, and takes more tokens.

        Raises:
            ShapeError: not `[N, H, A]`, or empty.
            ConfigError: a number is not finite, the vocabulary is too small, or γ is too large or not positive.
            MissingExtra: tokenizers is not installed.
        """
        require_modules("tokenizers", place="FastActionTokenizer", extra="rlinf-models[fast]")
        from rlinf.models.action_tokens._bpe import train

        chunks = np.asarray(actions, dtype=np.float64)
        if chunks.ndim != 3 or 0 in chunks.shape:
            raise ShapeError("actions", f"expected [N, H, A], found {list(chunks.shape)}")
        _check_finite(chunks)
        horizon, size = chunks.shape[1:]
        numbers = 2 * _greatest(horizon, scale) + 1
        if numbers > _CHARACTERS:
            raise ConfigError("scale", f"expected at most {_CHARACTERS} whole numbers, found {numbers}", "Lower it.")
        if vocab_size < numbers:
            raise ConfigError("vocab_size", f"expected at least {numbers} for {horizon} steps at scale {scale}, found {vocab_size}")
        alphabet = [chr(_FIRST + i) for i in range(numbers)]
        texts = _texts(chunks, scale)
        return cls(horizon=horizon, size=size, scale=scale, bpe=train(texts, alphabet, vocab_size))

    @property
    def vocab_size(self) -> int:
        """Tokens that there are; ids are below."""
        return int(self.bpe.get_vocab_size())

    def encode(self, actions: ArrayLike) -> list[list[int]]:
        """Tokens of each chunk.

        Args:
            actions: `[B, H, A]`, normalised; clipped beyond ±1.

        Raises:
            ShapeError: chunks of another size.
            ConfigError: a number is not finite.
        """
        chunks = np.asarray(actions, dtype=np.float64)
        if chunks.ndim != 3 or chunks.shape[1:] != (self.horizon, self.size):
            raise ShapeError("actions", f"expected [B, {self.horizon}, {self.size}], found {list(chunks.shape)}")
        _check_finite(chunks)
        return [list(self.bpe.encode(text).ids) for text in _texts(chunks, self.scale)]

    def decode(self, tokens: Sequence[Sequence[int]], *, strict: bool = True) -> NDArray[np.float32]:
        """Chunks of tokens.

        Args:
            tokens: ids of each chunk; without padding.
            strict: whether ids that are no whole chunk are an error. Else what is missing, as from a model that stopped too
                early, is a coefficient of 0, and what is too much is cut off.

        Returns:
            `[B, H, A]` float32, about ±1.

        Raises:
            ShapeError: ids that are no chunk.
        """
        count, greatest = self.horizon * self.size, _greatest(self.horizon, self.scale)
        numbers = np.zeros((len(tokens), count))
        for row, ids in enumerate(tokens):
            unknown = [i for i in ids if not 0 <= i < self.vocab_size]
            text = "".join(self.bpe.id_to_token(i) for i in ids if 0 <= i < self.vocab_size)
            if strict and (unknown or len(text) != count):
                found = f"{len(text)} and the unknown ids {unknown}" if unknown else f"{len(text)}"
                raise ShapeError(f"tokens[{row}]", f"expected {count} coefficients, found {found}")
            values = [ord(character) - _FIRST - greatest for character in text[:count]]
            numbers[row, : len(values)] = values
        coefficients = numbers.reshape(-1, self.horizon, self.size) / self.scale
        return np.einsum("kt,bka->bta", _cosines(self.horizon), coefficients).astype(np.float32)

    def save(self, file: Path) -> None:
        """Writes one JSON file."""
        content = {
            "format": FORMAT,
            "horizon": self.horizon,
            "size": self.size,
            "scale": self.scale,
            "bpe": json.loads(self.bpe.to_str()),
        }
        # Escaped, as no editor shows characters of the private use area.
        file.write_text(json.dumps(content, ensure_ascii=True), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> FastActionTokenizer:
        """Reads what `save` wrote.

        Raises:
            CheckpointError: there is no such file, or it holds something else.
            MissingExtra: tokenizers is not installed.
        """
        require_modules("tokenizers", place="FastActionTokenizer", extra="rlinf-models[fast]")
        from rlinf.models.action_tokens._bpe import restore

        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise CheckpointError(str(file), f"expected the format {FORMAT}, found {content['format']}", "Use another file.")
            bpe = restore(json.dumps(content["bpe"]))
            return cls(horizon=int(content["horizon"]), size=int(content["size"]), scale=float(content["scale"]), bpe=bpe)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(str(file), f"can't be read ({error!r})", "Use another file.") from error


def _check_finite(chunks: NDArray[np.float64]) -> None:
    if not np.isfinite(chunks).all():
        raise ConfigError("actions", "expected finite numbers, found infinity or not a number")


def _greatest(horizon: int, scale: float) -> int:
    """The greatest whole number of a chunk in ±1: an orthonormal coefficient is at most √H."""
    expect_range("scale", scale, 0.0, open_low=True)
    return math.ceil(scale * math.sqrt(horizon))


def _texts(chunks: NDArray[np.float64], scale: float) -> list[str]:
    """One character for each coefficient, low frequencies first."""
    greatest = _greatest(chunks.shape[1], scale)
    # Frequencies before dimensions, so that flattening puts the low ones of all dimensions first.
    coefficients = np.einsum("kt,bta->bka", _cosines(chunks.shape[1]), np.clip(chunks, -1.0, 1.0))
    numbers = np.clip(np.rint(coefficients * scale), -greatest, greatest).astype(np.int64) + greatest + _FIRST
    return ["".join(map(chr, row)) for row in numbers.reshape(len(chunks), -1)]


@cache
def _cosines(horizon: int) -> NDArray[np.float64]:
    """The orthonormal DCT-II, `[k, t]`: Ahmed, Natarajan & Rao, "Discrete Cosine Transform" (1974); must not be changed."""
    time = np.arange(horizon) + 0.5
    cosines = np.cos(np.pi / horizon * np.arange(horizon)[:, None] * time) * math.sqrt(2.0 / horizon)
    cosines[0] /= math.sqrt(2.0)
    return cosines

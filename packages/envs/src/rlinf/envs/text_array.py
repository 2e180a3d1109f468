"""`TextArray`: a space of short texts."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

_LETTERS = np.array(list(string.ascii_lowercase + " "))


class TextArray(Space[NDArray[np.str_]]):
    """Arrays of texts of at most `max_length` characters.

    Gymnasium's `Text` is one string; a batch of it is a tuple, without dtype and without indexing by an array. This is an array of
    NumPy's `<U` type, so that observations are arrays throughout. A single environment gives a plain `str`, which is what
    Gymnasium's `check_env` can compare.

    Args:
        max_length: characters of the longest text.
        shape: of the array; `()` for one text.
        seed: of `sample`.
    """

    def __init__(self, max_length: int, shape: tuple[int, ...] = (), seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(shape, np.dtype(f"<U{max_length}"), seed)

    @property
    def is_np_flattenable(self) -> bool:
        """A text is no vector of numbers."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[np.str_]:
        """Random lower-case letters, `shape`; `mask` and `probability` are for other spaces."""
        texts: NDArray[np.str_] = np.empty(self.shape or (), f"<U{self.max_length}")
        for at in np.ndindex(texts.shape):
            length = int(self.np_random.integers(1, self.max_length + 1))
            texts[at] = "".join(self.np_random.choice(_LETTERS, length))
        return texts

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text, or an array of texts, of this shape and no longer than allowed."""
        array = np.asarray(x)
        # NumPy keeps four bytes for each character.
        return array.dtype.kind == "U" and array.shape == self.shape and array.dtype.itemsize // 4 <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextArray) and (self.shape, self.max_length) == (other.shape, other.max_length)

    def __hash__(self) -> int:
        return hash((self.shape, self.max_length))

    def __repr__(self) -> str:
        return f"TextArray({self.max_length}, {self.shape})"


def _batch(space: TextArray, n: int = 1) -> TextArray:
    return TextArray(space.max_length, (n, *(space.shape or ())))


def _iterate(space: TextArray, items: Any) -> Iterator[Any]:
    return iter(items)


def _concatenate(space: TextArray, items: Iterable[Any], out: Any) -> Any:
    return np.stack([np.asarray(item, space.dtype) for item in items], axis=0, out=out)


def _create(space: TextArray, n: int | None = 1, fn: Any = np.zeros) -> Any:
    return fn(space.shape if n is None else (n, *(space.shape or ())), dtype=space.dtype)


# Gymnasium's own way to teach its vector environments a new space.
for _function, _method in cast(
    "Any", ((batch_space, _batch), (iterate, _iterate), (concatenate, _concatenate), (create_empty_array, _create))
):
    _function.register(TextArray, _method)

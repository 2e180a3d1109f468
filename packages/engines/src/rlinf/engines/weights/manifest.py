"""What a set of weights looks like, so that two sides can compare before anything is transferred."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

CASTABLE = frozenset({"torch.float64", "torch.float32", "torch.bfloat16", "torch.float16"})
"""Types between which weights can be cast; integers and 8-bit floats have scales of their own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch or NumPy prints it, such as "torch.float32"."""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def fits(self, other: Entry | None, *, cast: bool) -> bool:
        """Whether `other` can take its place; with `cast` also in another floating type."""
        if self == other or other is None:
            return other is not None
        return cast and self.shape == other.shape and {self.dtype, other.dtype} <= CASTABLE


@runtime_checkable
class Described(Protocol):
    """Tensors that can say what they look like before they exist."""

    def manifest(self) -> Manifest:
        """Names, shapes and types of all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of a model, sorted by name."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(tensors: Mapping[str, Any]) -> Manifest:
        """The manifest of named arrays; the order of the mapping does not matter."""
        if isinstance(tensors, Described):
            return tensors.manifest()
        return Manifest(tuple(Entry(name, tuple(tensors[name].shape), str(tensors[name].dtype)) for name in sorted(tensors)))

    @property
    def digest(self) -> str:
        """One hash of all names, shapes and types."""
        lines = "\n".join(f"{e.name}\t{e.shape}\t{e.dtype}" for e in self.entries)
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        return [entry.name for entry in self.entries]

    def only(self, patterns: Sequence[str]) -> Manifest:
        """The tensors whose names match one of the patterns, such as "*.lora_A.*"; all if there are no patterns."""
        if not patterns:
            return self
        # `fnmatch` would not tell case apart on every system.
        return Manifest(tuple(e for e in self.entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)))

    def difference(self, other: Manifest, *, cast: bool = False) -> str | None:
        """The first tensor, by name, in which `other` differs from this: "name: expected …, found …"; None if none does.

        Args:
            other: what was found.
            cast: whether floating types may differ.
        """
        mine, theirs = ({e.name: e for e in manifest.entries} for manifest in (self, other))
        for name in sorted(mine.keys() | theirs.keys()):
            expected, found = mine.get(name), theirs.get(name)
            if expected is None or not expected.fits(found, cast=cast):
                return f"{name}: expected {expected or 'no such tensor'}, found {found or 'no such tensor'}"
        return None

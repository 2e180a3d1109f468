"""What a set of weights looks like, so that two sides can compare before anything is transferred."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch or NumPy prints it, such as "torch.float32"."""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of a model, sorted by name."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(tensors: Mapping[str, Any]) -> Manifest:
        """The manifest of named arrays; the order of the mapping does not matter."""
        return Manifest(tuple(Entry(name, tuple(tensors[name].shape), str(tensors[name].dtype)) for name in sorted(tensors)))

    @property
    def digest(self) -> str:
        """One hash of all names, shapes and types."""
        lines = "\n".join(f"{e.name}\t{e.shape}\t{e.dtype}" for e in self.entries)
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()

    def difference(self, other: Manifest) -> str | None:
        """The first tensor, by name, in which `other` differs from this: "name: expected …, found …"; None if none does."""
        mine, theirs = ({e.name: e for e in manifest.entries} for manifest in (self, other))
        for name in sorted(mine.keys() | theirs.keys()):
            expected, found = mine.get(name), theirs.get(name)
            if expected != found:
                return f"{name}: expected {expected or 'no such tensor'}, found {found or 'no such tensor'}"
        return None

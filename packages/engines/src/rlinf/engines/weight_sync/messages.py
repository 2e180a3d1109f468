"""The messages of an exchange of weights; `exchange` has their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf.engines.weights.manifest import Manifest

LAST = -1
"""The number of the receipt for all parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A receiver waits for weights, of whichever session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """There are weights."""

    session: str
    """Unique."""
    way: str
    """The sender's weight sync with its parameters; the receiver's must be the same."""
    version: int
    """The optimizer steps that made the weights."""
    manifest: Manifest
    """What is sent."""
    extra: Mapping[str, Any]
    """`Weights.extra`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """A receiver can take them."""

    session: str
    sender: tuple[str, int]
    """How the receiver calls the sender: its group and rank."""
    manifest: Manifest
    """What the receiver holds of what is announced."""
    base: Mapping[str, str] = field(default_factory=dict[str, str])
    """The checksum of what it holds by name, where a patch is to be made for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """All receivers can take them."""

    session: str
    members: tuple[tuple[str, int], ...]
    """The sender and all receivers, if what follows goes to all at once; empty if it goes to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the weights."""

    session: str
    number: int
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Part):
    """The last part; its content is None if all has been sent."""

    checksums: Mapping[str, str] | None
    """Of all weights, as the sender has them, by name; None if nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Every receiver has them whole."""

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A receiver has read a part, or, with the number `LAST`, has all of them, and they are right."""

    session: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One side can't go on."""

    session: str
    problem: str

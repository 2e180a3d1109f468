"""What sender and receivers of weights say to each other, and the tags they say it under.

    sender                         receivers
      │──── Announcement ─────────────▶│   version, names, shapes, types
      │◀─── Consent or Refusal ────────│   what it holds
      │──── Start ────────────────────▶│   all agree; nothing has moved before
      │──── Part 0, 1, 2 … ───────────▶│   at most two without a receipt
      │◀─── Receipt 0, 1, 2 … ─────────│
      │──── End ──────────────────────▶│   checksums, if asked for
      │◀─── Receipt ───────────────────│   it is whole
      │──── Commit ───────────────────▶│   it is whole everywhere: hand it over
      └──── Refusal ──────────────────▶    instead of any of these

Each message carries the session that it belongs to; what an interrupted session has left in a queue is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf.engines.manifest import Manifest

DOWN = "weights/down"
"""From the sender to one receiver."""
UP = "weights/up"
"""From a receiver to the sender."""
STREAM = "weights/stream"
"""From the sender to several receivers at once."""
LAST = -1
"""The number of the receipt for all parts."""


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
class End:
    """There are no more parts."""

    session: str
    parts: int
    """How many there were."""
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

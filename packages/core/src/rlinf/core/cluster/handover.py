"""Work that goes from a worker to another of its group while it is under way, and who decides that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker has under way."""

    rank: int
    items: int
    """That could go elsewhere; 0 if it has nothing to do."""
    since_s: float = 0.0
    """Seconds for which it has worked on the oldest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """So many items go from a worker to another."""

    giver: int
    taker: int
    items: int


class HandoverPolicy(Protocol):
    """Decides one handover at a time, from what the workers of a group have under way."""

    def next_handover(self, loads: Sequence[Load]) -> Handover | None:
        """The next handover, or None.

        Args:
            loads: of every worker.
        """
        ...

    def took(self, seconds: float) -> None:
        """What a handover took, until the giver had let go of the items; later decisions go by it."""
        ...

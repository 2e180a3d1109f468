"""What became of one line of a contract."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one line of the contract."""

    sentence: str
    """The line."""
    error: Exception | None = None
    """Why it doesn't hold; None if it does or was not examined."""
    skipped: str | None = None
    """Why it was not examined, such as "waived: …" with the examined thing's own reason; None if it was."""

"""What became of one line of a contract, and how it is told."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.errors import RLinfError, error_text


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one line of the contract."""

    sentence: str
    """The line."""
    error: Exception | None = None
    """Why it doesn't hold; None if it does or was not examined."""
    skipped: str | None = None
    """Why it was not examined, such as "waived: …" with the examined thing's own reason; None if it was."""


def tell(finding: Finding) -> None:
    """Writes a line to the standard output: `ok`, `FAIL` with the reason, or `--` for what was not examined."""
    if finding.skipped is not None:
        _write(f"--   {finding.sentence} ({finding.skipped})")
    elif finding.error is None:
        _write(f"ok   {finding.sentence}")
    else:
        _write(f"FAIL {finding.sentence}\n     {_words(finding.error)}")


def any_broken(findings: Sequence[Finding]) -> bool:
    """Whether a line is broken; says so."""
    broken = sum(finding.error is not None for finding in findings)
    if broken:
        _write(f"     {broken} of {len(findings)} lines are broken; the first is often the cause of others")
    return broken > 0


def _words(error: Exception) -> str:
    """The error; with its type and origin if it is none of ours."""
    if isinstance(error, RLinfError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    origin = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{error_text(error)}{origin}"


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

"""How far programs can be confined, from least to most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

SandboxLevel = Literal["rlimits", "seccomp", "landlock", "namespaces"]
"""What a program is kept from; each level has all of those before it. `MEANING` says it in words."""
LEVELS: Final[tuple[SandboxLevel, ...]] = ("rlimits", "seccomp", "landlock", "namespaces")
"""From least to most."""
MEANING: Final[Mapping[SandboxLevel, str]] = {
    "rlimits": "has bounded time, memory, output and file sizes, one process without threads, and inherits nothing",
    "seccomp": "also opens no connection, runs no other program, and signals and traces no process",
    "landlock": "also reads the interpreter alone, and writes its scratch folder alone",
    "namespaces": "also sees no other process, file system or network; its scratch folder is bounded; it may have processes",
}
"""What is true of a program at each level, and at those above it."""

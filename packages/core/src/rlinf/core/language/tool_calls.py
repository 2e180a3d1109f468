"""A call of a tool as a model wrote it, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ToolOutcome = Literal["ok", "malformed", "unknown", "arguments", "error", "timeout", "lost"]
"""What became of a call:

| outcome | what happened |
|---|---|
| `ok` | the tool answered |
| `malformed` | the text of the call could not be read |
| `unknown` | there is no tool of that name |
| `arguments` | the arguments don't fit the tool's schema |
| `error` | the tool raised an error |
| `timeout` | the tool took too long, or no place for the call became free |
| `lost` | the process in which the tool runs ended during the call, each time that it was made |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as a model wrote it."""

    name: str
    """That of the tool; "" where it could not be read."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By the names of parameters."""
    fault: str = ""
    """What is wrong with the text of the call, for the model; "" for a call that could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of a call."""

    text: str
    """What the model reads."""
    outcome: ToolOutcome = "ok"
    """How it went."""
    cached: bool = False
    """Whether it is that of an earlier call with the same arguments."""
    name: str = ""
    """That of the tool."""
    resent: int = 0
    """How often the call was made again because the process in which the tool runs had ended."""

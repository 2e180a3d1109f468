"""What the formats have in common in which calls stand in `<tool_call>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rlinf.core.agents import Tool, ToolResult

# A call that a model forgot to close ends where the next one begins, or with the text.
TAGGED: Final = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
"""A call, and its end; "" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndsTurn:
    """A model that ends its turn itself, and needs nothing installed."""

    def stops(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """The model ends its turn itself."""
        return ()

    def check(self, place: str) -> None:
        """Nothing has to be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(ModelEndsTurn):
    """Calls in `<tool_call>`, any number in a turn, and results in `<tool_response>`."""

    role: Literal["user", "tool"] = "user"
    """The role of a message with results: as templates that know "tool" write one, too."""

    def write_results(self, results: Sequence[ToolResult]) -> str:
        return "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)

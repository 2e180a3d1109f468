"""How a model writes calls of tools, and how it reads their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from rlinf.core.agents.tools import Tool
from rlinf.core.language.tool_calls import ToolCall, ToolResult

Role = Literal["user", "tool", "ipython"]


class ToolFormat(Protocol):
    """A registered format of tool calls."""

    @property
    def role(self) -> Role:
        """The role of a message with results, where a chat template writes messages."""
        ...

    def stops(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Texts behind which a turn is over; () where the model ends its turn itself."""
        ...

    def check(self, place: str) -> None:
        """Refuses early what would fail late."""
        ...

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the system message says of the tools; "" without any."""
        ...

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The calls in a turn, in order; one that can't be read has a `fault`. () for a turn that calls nothing."""
        ...

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """The text by which a model makes these calls, for worked examples."""
        ...

    def write_results(self, results: Sequence[ToolResult]) -> str:
        """The text that the model reads after its calls."""
        ...

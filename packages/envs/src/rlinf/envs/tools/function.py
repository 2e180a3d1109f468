"""Tools that nobody registered: a typed function of yours, as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rlinf.core.agents import Tool
from rlinf.core.errors import ConfigError
from rlinf.core.registry import TOOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function, or a `Tool`, of yours by name: `agent.tools: [{type: my_module:my_function}]`."""

    function: str
    """`module:attr`, or the name under which it was registered."""
    name: str | None = None
    """By which the model calls it; null for the function's own."""
    inline: bool = False
    """Whether it is so quick that it runs on the event loop itself, not in a thread; it can't time out then."""

    def check(self, place: str) -> None:
        """Imports the function and reads its signature.

        Raises:
            ConfigError: there is no such function, or it can't be a tool.
        """
        self._tool(place)

    def build(self) -> Tool:
        return self._tool("tools")

    def _tool(self, place: str) -> Tool:
        found: Any = TOOLS.get(self.function, place=f"{place}.function")
        if isinstance(found, Tool):
            return replace(found, name=self.name or found.name, inline=self.inline or found.inline)
        if not callable(found):
            # Of the whole entry, as the path may stand under `type` as well as under `function`.
            raise ConfigError(place, f"expected a function at '{self.function}', found {found!r:.80}", "Name a typed function.")
        try:
            return Tool.of(found, name=self.name, inline=self.inline)
        except ConfigError as error:
            # Which tool it is says little in a list of many.
            error.move(f"{place} ('{self.function}'): {error.place}")
            raise

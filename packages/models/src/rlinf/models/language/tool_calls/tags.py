"""Calls written as tags that are called like the tools: `<search>who wrote Faust</search>`, as Search-R1 does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from rlinf.core.agents import Tool, ToolCall, ToolResult
from rlinf.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFormat:
    """`<tool>text</tool>`, one call in a turn, which ends with it, by name: `agent.tool_format.type: tags`.

    What stands in the tags is the tool's only argument; a tool with several takes them in tags of their own within.
    Search-R1: Jin et al., "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning" (2025),
    §3.2, arXiv:2503.09516, whose results stand in `<information>`.
    """

    result_tag: str = "result"
    """The tag in which the result of a call stands."""
    role: Literal["user", "tool"] = "user"
    """The role of a message with results, where a chat template writes messages."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.result_tag):
            found = f"expected letters, digits, _ and -, found {self.result_tag!r}"
            raise ConfigError("result_tag", found, "Write it without < and >.")

    def stops(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """The ends of calls."""
        return tuple(f"</{tool.name}>" for tool in tools)

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the system message says of the tools."""
        if not tools:
            return ""
        lines = [f"<{tool.name}>{_inside(tool)}</{tool.name}>: {tool.description}" for tool in tools]
        told = f"You can call tools by tags; what they find follows in <{self.result_tag}></{self.result_tag}>."
        return "\n".join([told, *lines])

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The first call in a turn."""
        known = {tool.name: tool for tool in tools}
        if not known:
            return ()
        begin = re.search(rf"<({'|'.join(map(re.escape, known))})>", text)
        if begin is None:
            return ()
        name, inside = begin[1], text[begin.end() :]
        end = inside.find(f"</{name}>")
        if end < 0:
            return (ToolCall(name=name, fault=f"expected </{name}> after <{name}>, found no end"),)
        return (_call(known[name], inside[:end]),)

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """The text by which a model makes these calls."""
        return "".join(f"<{call.name}>{_arguments(call)}</{call.name}>" for call in calls)

    def write_results(self, results: Sequence[ToolResult]) -> str:
        """The text that the model reads after its calls."""
        return "".join(f"<{self.result_tag}>{result.text}</{self.result_tag}>" for result in results)


def _properties(tool: Tool) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", tool.parameters.get("properties", {}))


def _inside(tool: Tool) -> str:
    names = list(_properties(tool))
    return names[0] if len(names) == 1 else "".join(f"<{name}>…</{name}>" for name in names)


def _arguments(call: ToolCall) -> str:
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in call.arguments.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


def _call(tool: Tool, inside: str) -> ToolCall:
    properties = _properties(tool)
    if len(properties) == 1:
        ((name, schema),) = properties.items()
        return ToolCall(name=tool.name, arguments={name: _value(inside, schema)})
    found = {name: re.search(rf"<{name}>(.*?)</{name}>", inside, re.DOTALL) for name in properties}
    arguments = {name: _value(match[1], properties[name]) for name, match in found.items() if match is not None}
    return ToolCall(name=tool.name, arguments=arguments)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """What a tag says: text, or JSON where the schema asks for anything else."""
    kinds = schema.get("type", "string")
    if "string" in ([kinds] if isinstance(kinds, str) else kinds):
        return text.strip()
    try:
        return json.loads(text.strip())
    except ValueError:
        return text.strip()  # the schema says then what it should have been

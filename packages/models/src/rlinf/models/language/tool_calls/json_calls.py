"""Calls written as JSON: in tags, as Hermes and Qwen models do, or bare, as Llama models do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from rlinf.core.agents import Tool, ToolCall, ToolResult
from rlinf.models.language.tool_calls.tagged import TAGGED, ModelEndsTurn, TaggedCalls

_PYTHON_TAG: Final = "<|python_tag|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class HermesFormat(TaggedCalls):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number in a turn, by name: `agent.tool_format.type: hermes`."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        described = "\n".join(json.dumps(tool.schema, ensure_ascii=False) for tool in tools)
        example = '<tool_call>\n{"name": <tool name>, "arguments": <JSON object>}\n</tool_call>'
        return f"You can call these tools:\n<tools>\n{described}\n</tools>\n\nWrite each call as\n{example}"

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        return tuple(_read(match[1], "arguments", closed=bool(match[2])) for match in TAGGED.finditer(text))

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"<tool_call>\n{_written(call, 'arguments')}\n</tool_call>" for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaFormat(ModelEndsTurn):
    """A turn of nothing but JSON, `{"name": …, "parameters": {…}}`, several apart by `;`: `agent.tool_format.type: llama`."""

    role: Literal["user", "tool", "ipython"] = "ipython"
    """The role of a message with results."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        described = "\n\n".join(json.dumps(tool.schema, ensure_ascii=False, indent=4) for tool in tools)
        form = '{"name": tool name, "parameters": {parameter name: value}}'
        return f"You can call these tools. To call one, answer with nothing but {form}.\n\n{described}"

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The calls in a turn; a text that does not begin as JSON calls nothing."""
        marked = text.strip().startswith(_PYTHON_TAG)
        rest = text.strip().removeprefix(_PYTHON_TAG).strip()
        if not marked and not re.match(r'\{\s*"(name|type)"', rest):
            return ()
        decoder, found = json.JSONDecoder(), list[ToolCall]()
        while rest:
            try:
                _, end = decoder.raw_decode(rest)
            except ValueError:
                # Nobody knows where a broken call ends, so that all that is left is one call with a fault.
                end = len(rest)
            found.append(_read(rest[:end], "parameters", closed=True))
            rest = rest[end:].lstrip("; \n")
        return tuple(found)

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(_written(call, "parameters") for call in calls)

    def write_results(self, results: Sequence[ToolResult]) -> str:
        return "\n".join(json.dumps({"output": result.text}, ensure_ascii=False) for result in results)


def _written(call: ToolCall, key: str) -> str:
    return json.dumps({"name": call.name, key: dict(call.arguments)}, ensure_ascii=False)


def _read(text: str, key: str, *, closed: bool) -> ToolCall:
    """A call, or what is wrong with its text."""
    form = f'{{"name": …, "{key}": {{…}}}}'
    try:
        content: Any = json.loads(text.strip())
    except ValueError as error:
        reason = "the call has no end" if not closed else f"no JSON ({error})"
        return ToolCall(name="", fault=f"expected a call as {form}, found {reason}")
    if not isinstance(content, Mapping):
        return ToolCall(name="", fault=f"expected a call as {form}, found {text.strip()[:80]}")
    fields = cast("Mapping[str, Any]", content)
    name = fields.get("name")
    # Models mix the two up, and both say the same.
    arguments = fields.get(key, fields.get("parameters" if key == "arguments" else "arguments", {}))
    if not isinstance(name, str):
        return ToolCall(name="", fault=f"expected a call as {form}, found no name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ToolCall(name=name, fault=f"expected the arguments as an object, found {arguments[:80]!r}")
    if not isinstance(arguments, Mapping):
        return ToolCall(name=name, fault=f"expected the arguments as an object, found {arguments!r:.80}")
    return ToolCall(name=name, arguments=dict(cast("Mapping[str, Any]", arguments)))

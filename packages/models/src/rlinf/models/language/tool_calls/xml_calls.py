"""Calls written as XML, one tag for each argument, as Qwen3-Coder models do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from rlinf.core.agents import Tool, ToolCall
from rlinf.models.language.tool_calls.tagged import TAGGED, TaggedCalls

_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\n]*)>(.*?)</parameter>", re.DOTALL)
_FORM: Final = "<function=name><parameter=key>value</parameter></function>"
_EXAMPLE: Final = """<tool_call>
<function=tool_name>
<parameter=first>
value
</parameter>
<parameter=second>
a value
of several lines
</parameter>
</function>
</tool_call>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenXMLFormat(TaggedCalls):
    """`<function=name><parameter=key>value</parameter></function>` in `<tool_call>`: `agent.tool_format.type: qwen_xml`.

    Any number in a turn. A value is text as it stands, without quotes or escapes; it is read as JSON where the tool's schema asks
    for anything but text. A text that has `</parameter>` in it can't be written.
    """

    def instructions(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return ""
        described = "\n".join(map(_described, tools))
        return f"You can call these tools:\n\n<tools>\n{described}\n</tools>\n\nWrite each call as\n\n{_EXAMPLE}"

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        known = {tool.name: tool for tool in tools}
        return tuple(_read(match[1], known, closed=bool(match[2])) for match in TAGGED.finditer(text))

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(_written, calls))


def _described(tool: Tool) -> str:
    properties = cast("Mapping[str, Mapping[str, Any]]", tool.parameters.get("properties", {}))
    lines = ["<function>", f"<name>{tool.name}</name>", f"<description>{tool.description}</description>", "<parameters>"]
    for name, schema in properties.items():
        lines += ["<parameter>", f"<name>{name}</name>"]
        # A text stands as it is, anything else of the schema, such as the kinds of items, as JSON.
        lines += [
            f"<{key}>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</{key}>"
            for key, value in schema.items()
        ]
        lines.append("</parameter>")
    required: Any = tool.parameters.get("required")
    if required:
        lines.append(f"<required>{json.dumps(required)}</required>")
    return "\n".join([*lines, "</parameters>", "</function>"])


def _written(call: ToolCall) -> str:
    lines = ["<tool_call>", f"<function={call.name}>"]
    for name, value in call.arguments.items():
        lines += [
            f"<parameter={name}>",
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
            "</parameter>",
        ]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def _read(text: str, known: Mapping[str, Tool], *, closed: bool) -> ToolCall:
    """A call, or what is wrong with its text."""
    found = _FUNCTION.fullmatch(text)
    if found is None or not found[1].strip():
        reason = "the call has no end" if not closed else repr(text.strip()[:80])
        return ToolCall(name="", fault=f"expected a call as {_FORM}, found {reason}")
    name, inside = found[1].strip(), found[2]
    properties: Mapping[str, Any] = known[name].parameters.get("properties", {}) if name in known else {}
    arguments: dict[str, Any] = {}
    at = 0
    while match := _PARAMETER.match(inside, at):
        arguments[match[1].strip()] = _value(match[2], properties.get(match[1].strip(), {}))
        at = match.end()
    if rest := inside[at:].strip():
        return ToolCall(name=name, fault=f"expected each argument as <parameter=key>value</parameter>, found {rest[:80]!r}")
    return ToolCall(name=name, arguments=arguments)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """What stands between the tags, without the line breaks next to them."""
    text = text.removeprefix("\n").removesuffix("\n")
    kinds: Any = schema.get("type")
    # Without a type, as where one of several schemas fits, text is only what is no JSON.
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text
    try:
        return json.loads(text.strip())
    except ValueError:
        return text  # the schema says then what it should have been

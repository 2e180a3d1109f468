"""From a Python signature to a JSON schema, and whether arguments fit one."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from rlinf.core.errors import ConfigError

Schema = Mapping[str, Any]
_PLAIN: Final[dict[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ENTRY: Final = re.compile(r"^\s*\*{0,2}(?P<name>\w+)(?:\s*\([^)]*\))?\s*:\s*(?P<text>.*)$")
_HEADING: Final = re.compile(r"^\w[\w ]*:\s*$")


class ArgumentError(ValueError):
    """Arguments that don't fit a schema; the text is meant for the model that wrote them."""


def signature_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function's parameters: types of the signature, descriptions of a Google-style docstring.

    Known are str, int, float, bool, None, Any, list, tuple of one type, dict with str keys, Literal and unions of these.

    Raises:
        ConfigError: a parameter has no type, or one that is not known; or the function takes `*args` or `**kwargs`.
    """
    place = f"tool {getattr(function, '__name__', function)!r}"
    # The types of a signature are texts where a module postpones its annotations.
    hints = typing.get_type_hints(function)
    told = parameter_texts(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(place, f"expected named parameters, found '{parameter}'", "Write each of them out.")
        if name not in hints:
            raise ConfigError(place, f"parameter '{name}' has no type", "Annotate it, such as `x: int`.")
        properties[name] = {**type_schema(hints[name], place=f"{place}, parameter '{name}'")}
        if told.get(name):
            properties[name]["description"] = told[name]
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def type_schema(hint: Any, *, place: str) -> dict[str, Any]:
    """The JSON schema of one type.

    Raises:
        ConfigError: JSON has no such type; the message begins with `place`.
    """
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is Literal:
        return {"enum": list(members)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [type_schema(member, place=place) for member in members]}
    # A bare `list` has no origin.
    item = origin or hint
    if item in (list, tuple, Sequence) and len([member for member in members if member is not ...]) <= 1:
        return {"type": "array", **({"items": type_schema(members[0], place=place)} if members else {})}
    if item in (dict, Mapping) and (not members or members[0] is str):
        return {"type": "object", **({"additionalProperties": type_schema(members[1], place=place)} if members else {})}
    raise ConfigError(place, f"expected a type that JSON has, found {hint}", "Use str, int, float, bool, list, dict or Literal.")


def summary(docstring: str) -> str:
    """What a docstring says before its sections, as one line."""
    lines: list[str] = []
    for line in docstring.splitlines():
        if _HEADING.match(line):
            break
        lines.append(line.strip())
    return " ".join(" ".join(lines).split())


def parameter_texts(docstring: str) -> dict[str, str]:
    """What the section `Args:` of a Google-style docstring says of each parameter, each as one line."""
    found: dict[str, str] = {}
    inside, depth, name = False, 0, ""
    for line in docstring.splitlines():
        if _HEADING.match(line):
            inside, depth, name = line.strip() in ("Args:", "Arguments:", "Parameters:"), 0, ""
            continue
        if not inside or not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line)
        # A line that is indented farther goes on with the parameter before it, even if it has a colon.
        if entry and (depth == 0 or indent <= depth):
            depth, name = indent, entry["name"]
            found[name] = entry["text"].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def check_arguments(arguments: object, schema: Schema) -> dict[str, Any]:
    """Arguments that fit the schema of a tool's parameters; a whole number that came as `2.0` is an int where one is asked for.

    Raises:
        ArgumentError: they don't; the text names what was expected and what was found.
    """
    if not isinstance(arguments, Mapping):
        raise ArgumentError(f"expected the arguments as an object, found {_shown(arguments)}")
    given = cast("Mapping[str, Any]", arguments)
    properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
    missing = [name for name in schema.get("required", ()) if name not in given]
    if missing:
        raise ArgumentError(f"missing argument '{missing[0]}'; expected {_parameters(properties)}")
    unknown = [name for name in given if name not in properties]
    if unknown and schema.get("additionalProperties") is False:
        raise ArgumentError(f"unknown argument '{unknown[0]}'; expected {_parameters(properties)}")
    return {name: _fitted(value, properties.get(name, {}), name) for name, value in given.items()}


def _fitted(value: Any, schema: Schema, place: str) -> Any:
    if "anyOf" in schema:
        value = _fitted_any(value, cast("Sequence[Schema]", schema["anyOf"]), place)
    # 1 == True, which JSON tells apart.
    elif "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        choices = ", ".join(map(repr, schema["enum"]))
        raise ArgumentError(f"argument '{place}': expected one of {choices}, found {_shown(value)}")
    kind = schema.get("type")
    if kind is None:
        return value
    kinds: Sequence[str] = [kind] if isinstance(kind, str) else kind
    if not any(_is(value, each) for each in kinds):
        raise ArgumentError(f"argument '{place}': expected {_article(kind)}, found {_shown(value)}")
    # A function that takes an int can't do with 2.0 what it does with 2, such as `range`.
    if isinstance(value, float) and value.is_integer() and "integer" in kinds and "number" not in kinds:
        return int(value)
    if isinstance(value, Mapping):
        return _fitted_object(cast("Mapping[str, object]", value), schema, place)
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return [_fitted(item, schema.get("items", {}), f"{place}[{number}]") for number, item in items]
    return value


def _fitted_any(value: object, choices: Sequence[Schema], place: str) -> object:
    faults: list[str] = []
    for choice in choices:
        try:
            return _fitted(value, choice, place)
        except ArgumentError as error:
            faults.append(str(error))
    before, behind = f"argument '{place}': expected ", f", found {_shown(value)}"
    # A fault further inside says more than that the others are of another type.
    inside = [fault for fault in faults if not (fault.startswith(before) and fault.endswith(behind))]
    expected = " or ".join(fault.removeprefix(before).removesuffix(behind) for fault in faults)
    raise ArgumentError(inside[0] if inside else f"{before}{expected}{behind}")


def _fitted_object(value: Mapping[str, object], schema: Schema, place: str) -> dict[str, object]:
    properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise ArgumentError(f"argument '{place}': missing '{name}'")
    for name in value:
        if name not in properties and other is False:
            raise ArgumentError(f"argument '{place}': unknown '{name}'")
    others = cast("Schema", other if isinstance(other, Mapping) else {})
    return {name: _fitted(item, properties.get(name, others), f"{place}.{name}") for name, item in value.items()}


def _is(value: object, kind: str) -> bool:
    # In JSON 2.0 is an integer and true is no number; in Python 2.0 is a float and True an int.
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and (kind == "number" or value.is_integer()))
        return whole and not isinstance(value, bool)
    known = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": Mapping}
    return isinstance(value, known.get(kind, object))


def _article(kind: str | Sequence[str]) -> str:
    words = {"integer": "an integer", "array": "a list", "object": "an object", "null": "null"}
    return " or ".join(words.get(each, f"a {each}") for each in ([kind] if isinstance(kind, str) else kind))


def _parameters(properties: Mapping[str, Schema]) -> str:
    return ", ".join(f"'{name}'" for name in properties) or "no arguments"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"

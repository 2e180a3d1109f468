"""Reads a mapping into a dataclass, strictly.

Unknown keys, missing keys and wrong types are errors with the dotted path, the value and the nearest name. All faults of one
configuration are reported together. Nothing is converted silently but whole numbers to `float` and lists to tuples. Numbers are
finite, and whole ones have 64 bits, wherever they stand.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Union, cast

from rlinf.core.config.meanings import summary
from rlinf.core.errors import ConfigError, did_you_mean, each_fault, refuse

T = TypeVar("T")
_UNKNOWN = "unknown key"


Refused = Mapping[str, Sequence[ConfigError]]


def read(
    cls: type[T], data: Mapping[str, Any], *, place: str = "", allowed: Collection[str] = (), refused: Refused | None = None
) -> T:
    """An instance of the dataclass `cls` from a mapping.

    Args:
        cls: a dataclass; fields without a default are required.
        data: plain containers, as from YAML.
        place: the dotted path of `data` in the whole configuration, for messages.
        allowed: keys that somebody else reads; they are skipped.
        refused: fields that the caller has read and refused, and their faults, which are reported with those of the others.

    Raises:
        ConfigError: with one line per fault. A `ConfigError` or `ValueError` raised by the dataclass's own `__post_init__` is
            reported below `place`.
    """
    faults: list[ConfigError] = []
    result = _read_dataclass(cls, data, place, faults, allowed, refused or {})
    refuse(faults, place=place or "configuration")
    return cast("T", result)


def field_names(cls: type[Any]) -> list[str]:
    """The keys that `read` accepts for `cls`."""
    return [f.name for f in dataclasses.fields(cls) if f.init]


@functools.cache
def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """The types of a dataclass's fields, also where a module postpones its annotations, which are texts then.

    To evaluate those costs a millisecond, and one recipe asks some hundred times.
    """
    return typing.get_type_hints(cls)


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _read_dataclass(
    cls: type[Any],
    data: object,
    place: str,
    faults: list[ConfigError],
    allowed: Collection[str] = (),
    refused: Refused = MappingProxyType({}),
) -> object:
    if not isinstance(data, Mapping):
        faults.append(ConfigError(place, f"expected a section, found {data!r}", f"Its keys are {', '.join(field_names(cls))}."))
        return None
    mapping = cast("Mapping[str, Any]", data)
    hints = field_types(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    before = len(faults)
    # Two that share a section each refuse a key of neither.
    faults += {(fault.place, fault.problem): fault for told in refused.values() for fault in told}.values()
    unknown = {fault.place for fault in faults if fault.problem == _UNKNOWN}
    for key in mapping:
        if key not in fields and key not in allowed and _join(place, str(key)) not in unknown:
            hint = did_you_mean(str(key), [*fields, *allowed])
            faults.append(ConfigError(_join(place, str(key)), _UNKNOWN, hint))
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in refused:
            continue
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], _join(place, name), faults)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            expected = f"Expected {_describe(hints[name])}"
            meaning = summary(cls, name)
            faults.append(ConfigError(_join(place, name), "missing", f"{expected}: {meaning}" if meaning else f"{expected}."))
    # Without all values, `__post_init__` would complain of what is no fault.
    if len(faults) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:
        # Each by itself: an error that reports several has no place of its own.
        for fault in each_fault(error):
            below = _join(place, fault.place) if fault.place else place
            faults.append(type(fault)(below, fault.problem, fault.remedy))
    except ValueError as error:
        faults.append(ConfigError(place, str(error)))
    return None


def _convert(hint: Any, value: object, place: str, faults: list[ConfigError]) -> object:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        _refuse_numbers(value, place, faults)
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, place, faults)
    if origin is Literal:
        return _convert_literal(typing.get_args(hint), value, place, faults)
    # `typing.is_protocol`, which only Python 3.13 has.
    if getattr(hint, "_is_protocol", False) or (isinstance(hint, type) and dataclasses.is_dataclass(value)):
        return _convert_built(hint, value, place, faults)
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(cast("type[Any]", hint), value, place, faults)
    if origin in (tuple, list) or (isinstance(origin, type) and issubclass(origin, (Sequence, Mapping))):
        return _convert_container(origin, typing.get_args(hint), value, place, faults)
    return _convert_scalar(hint, value, place, faults)


def _convert_built(hint: Any, value: object, place: str, faults: list[ConfigError]) -> object:
    """What the caller has already built from its own section is passed through."""
    # `isinstance` raises for a protocol that is not runtime-checkable.
    if not getattr(hint, "_is_protocol", False) and not isinstance(value, hint):
        faults.append(ConfigError(place, f"expected {_describe(hint)}, found {value!r}"))
    return value


def _convert_union(members: tuple[Any, ...], value: object, place: str, faults: list[ConfigError]) -> object:
    if value is None and type(None) in members:
        return None
    if not _refuse_numbers(value, place, faults):
        return None
    rest = [member for member in members if member is not type(None)]
    for member in rest:
        attempt: list[ConfigError] = []
        converted = _convert(member, value, place, attempt)
        if not attempt:
            return converted
        # Where None is the only other choice, the member's own faults say more than its name.
        if len(rest) == 1:
            faults.extend(attempt)
            return None
    faults.append(ConfigError(place, f"expected {' or '.join(map(_describe, members))}, found {value!r}"))
    return None


def _convert_literal(choices: tuple[Any, ...], value: object, place: str, faults: list[ConfigError]) -> object:
    # By type, too: to Python, 1 is True and 1.0.
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    hint = did_you_mean(str(value), [str(c) for c in choices], label="Choices")
    faults.append(ConfigError(place, f"no choice '{value}'", hint))
    return None


def _key(key: object, place: str, faults: list[ConfigError]) -> str:
    """A key of a mapping whose keys are texts; YAML reads that of `{1: …}` as a number."""
    if not isinstance(key, str | int) or isinstance(key, bool):
        problem = f"expected text as keys, found {key!r} ({type(key).__name__})"
        faults.append(ConfigError(place, problem, f"Write it in quotes: '{key}'."))
    return str(key)


def _convert_container(origin: Any, args: tuple[Any, ...], value: object, place: str, faults: list[ConfigError]) -> object:
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            faults.append(ConfigError(place, f"expected a section, found {value!r}"))
            return None
        mapping = cast("Mapping[str, Any]", value)
        of_key, item = args or (Any, Any)
        keys = {key: _key(key, place, faults) if of_key is str else key for key in mapping}
        return {keys[key]: _convert(item, entry, _join(place, str(key)), faults) for key, entry in mapping.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        faults.append(ConfigError(place, f"expected a list, found {value!r}", "Write it as [a, b]."))
        return None
    entries = cast("Sequence[Any]", value)
    fixed = origin is tuple and args and args[-1] is not Ellipsis
    if fixed and len(entries) != len(args):
        faults.append(ConfigError(place, f"expected {len(args)} values, found {len(entries)}"))
        return None
    items = args if fixed else [args[0] if args else Any] * len(entries)
    converted = [_convert(h, e, f"{place}[{i}]", faults) for i, (h, e) in enumerate(zip(items, entries, strict=True))]
    return tuple(converted) if origin is tuple else converted


def _refuse_numbers(value: object, place: str, faults: list[ConfigError]) -> bool:
    """Whether all numbers in plain containers can be computed with: they are finite, and whole ones fit into 64 bits."""
    before = len(faults)
    if isinstance(value, Mapping):
        for key, entry in cast("Mapping[Any, object]", value).items():
            _refuse_numbers(entry, _join(place, str(key)), faults)
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(cast("Sequence[object]", value)):
            _refuse_numbers(entry, f"{place}[{i}]", faults)
    elif isinstance(value, float) and not math.isfinite(value):
        faults.append(ConfigError(place, f"expected a finite number, found {value}"))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        faults.append(ConfigError(place, f"expected a whole number of 64 bits, found {value}"))
    return len(faults) == before


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_SCALARS: dict[Any, Callable[[object], bool]] = {
    bool: lambda v: isinstance(v, bool),
    # To Python, True and False are whole numbers.
    int: lambda v: isinstance(v, int) and not isinstance(v, bool),
    float: _is_number,
    str: lambda v: isinstance(v, str),
}


def _convert_scalar(hint: Any, value: object, place: str, faults: list[ConfigError]) -> object:
    if not _refuse_numbers(value, place, faults):
        return None
    accepts = _SCALARS.get(hint)
    good = accepts(value) if accepts else isinstance(value, hint)
    if not good:
        found = f"{value!r} ({type(value).__name__})"
        faults.append(ConfigError(place, f"expected {_describe(hint)}, found {found}"))
        return None
    # YAML reads 1 as a whole number.
    return float(cast("float", value)) if hint is float else value


def _describe(hint: Any) -> str:
    if hint is type(None):
        return "null"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint) or hint
    if origin is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe, typing.get_args(hint)))
    if dataclasses.is_dataclass(origin) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "a section"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return "a list"
    return str(getattr(cast("object", origin), "__name__", hint))

"""Sections are read as their dataclasses say: choices are made by name, and all faults are reported together.

What a section chooses, and which sections it is made of, stands in its dataclass (`rlinf.runners.config.schema.chosen` and `like`);
reading, dropping the parameters of a type that was replaced, explaining and the key reference all follow from that.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field
from typing import Any, TypeVar, cast

from rlinf.core.config.meanings import attributes
from rlinf.core.config.reading import Refused, field_names, field_types, read
from rlinf.core.errors import ConfigError, did_you_mean, each_fault, refuse, with_remedies
from rlinf.runners.config.compat import ELSEWHERE, OTHERWISE
from rlinf.runners.config.schema import RunConfig

T = TypeVar("T")
C = TypeVar("C", bound=RunConfig)
Section = Mapping[str, Any]


def read_sections(cls: type[C], data: Section, *, task_type: str) -> C:
    """A whole run, section by section; an absent section is read as an empty one.

    Args:
        cls: the run's dataclass. Fields that are mappings are read by somebody else, and passed on.
        data: the whole configuration.
        task_type: the name of the kind of run.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    known = [field.name for field in keyed_fields(cls)]
    faults = [ConfigError(key, "unknown section", did_you_mean(key, known)) for key in data if key not in known]
    parts: dict[str, Any] = {"source": dict(data)}
    for name in known:
        inner, optional = section_type(cls, name)
        try:
            section = subsection(data, name)
            if optional and data.get(name) is None:
                parts[name] = None
            elif inner is None:
                parts[name] = section
            else:
                parts[name] = read_section(inner, {"task_type": task_type, **section} if name == "runner" else section, name)
        except ConfigError as error:
            faults.append(error)
    refuse(with_remedies((fault for error in faults for fault in each_fault(error)), {**OTHERWISE, **ELSEWHERE}))
    return cls(**parts)


def section_of(cfg: RunConfig, name: str, kind: type[T]) -> T | None:
    """A section that not every task type has; None where this one has none of that name and kind."""
    found = getattr(cfg, name) if any(field.name == name for field in keyed_fields(type(cfg))) else None
    return found if isinstance(found, kind) else None


def read_section(cls: type[T], section: Section, place: str) -> T:
    """A section, the sections within it, and what all of them choose.

    Args:
        cls: its dataclass.
        section: what was configured.
        place: its dotted path.
    """
    built, refused = _read_inner(cls, section, place)
    choices, names, items = chosen_fields(cls), dict[str, str](), dict[str, Any]()
    # All are looked up first: when one is built, the keys of the others are allowed.
    for field in choices:
        try:
            name = names[field.metadata["key"]] = _name(cls, field, section, place)
            items[field.name] = field.metadata["registry"].get(name, place=_key(place, field))
        except ConfigError as error:
            refused |= {field.metadata["key"]: each_fault(error), field.name: ()}
    merged = {field.name: keys(items.get(field.name)) for field in choices if field.metadata["merged"]}
    _refuse_unknown_choice(merged, refused)
    own = [name for name in field_names(cls) if name not in merged]
    for field in choices:
        if field.name in refused:
            continue
        if field.metadata["merged"]:
            params, at = section, place
            others = [*own, *(key for name, known in merged.items() if name != field.name for key in known)]
        else:
            params, at, others = subsection(section, field.name, place), f"{place}.{field.name}", list[str]()
        try:
            built[field.name] = field.metadata["registry"].build(names[field.metadata["key"]], params, place=at, allowed=others)
        except ConfigError as error:
            refused[field.name] = each_fault(error)
    _refuse_unknown_choice(merged, refused)
    # A class that is no configuration takes those of what adapts it.
    allowed = [key for name, known in merged.items() for key in (*known, *keys(type(built.get(name))))]
    return read(cls, {**section, **names, **built}, place=place, allowed=allowed, refused=refused)


def _refuse_unknown_choice(merged: Mapping[str, Sequence[str]], refused: Refused) -> None:
    """Refuses a section at once if one of its choices is refused whose keys, which are its own, are not known."""
    if any(name in refused and not known for name, known in merged.items()):
        refuse([fault for told in refused.values() for fault in told])


def _read_inner(cls: type[Any], section: Section, place: str) -> tuple[dict[str, Any], dict[str, Sequence[ConfigError]]]:
    """The sections within a section that choose something, and the faults of those that are refused.

    The others are read along with it.
    """
    inherited, section = inherited_names(cls, section, place), with_inherited(cls, section, place)
    built: dict[str, Any] = {}
    refused: dict[str, Sequence[ConfigError]] = {}
    for field in keyed_fields(cls):
        listed = listed_type(cls, field.name)
        if listed is not None and _chooses(listed):
            faults = list[ConfigError]()
            built[field.name] = _read_list(listed, section.get(field.name), f"{place}.{field.name}", faults)
            if faults:
                refused[field.name] = faults
            continue
        inner, optional = section_type(cls, field.name)
        if inner is None or not _chooses(inner) or (optional and section.get(field.name) is None):
            continue
        try:
            built[field.name] = read_section(inner, subsection(section, field.name, place), f"{place}.{field.name}")
        except ConfigError as error:
            refused[field.name] = each_fault(error)
    return built, _told_once(refused, inherited, place)


def _told_once(refused: Refused, inherited: Mapping[str, tuple[str, list[str]]], place: str) -> dict[str, Sequence[ConfigError]]:
    """The faults without those of a value that a section takes from its neighbour, where they are told already."""
    told = {(fault.place, fault.problem) for faults in refused.values() for fault in faults}
    taken = {f"{place}.{name}.{key}": f"{place}.{other}.{key}" for name, (other, keys) in inherited.items() for key in keys}

    def again(fault: ConfigError) -> bool:
        # The key itself, a key below it or an entry of its list, but not a longer key that begins alike.
        own = next((at for at in taken if fault.place.startswith(at) and fault.place[len(at) :][:1] in ("", ".", "[")), None)
        return own is not None and (taken[own] + fault.place[len(own) :], fault.problem) in told

    return {name: [fault for fault in faults if not again(fault)] for name, faults in refused.items()}


def _read_list(cls: type[Any], entries: object, place: str, faults: list[ConfigError]) -> tuple[Any, ...]:
    """Sections in a list; none where it is absent."""
    if isinstance(entries, str) or not isinstance(entries, Sequence | None):
        faults.append(ConfigError(place, f"expected a list, found {entries!r}", "Write it as [{type: …}, {type: …}]."))
        return ()
    built: list[Any] = []
    for number, entry in enumerate(cast("Sequence[object]", entries or ())):
        at = f"{place}[{number}]"
        try:
            if not isinstance(entry, Mapping):
                raise ConfigError(at, f"expected a section, found {entry!r}", "Write it as {type: …}.")
            built.append(read_section(cls, cast("Section", entry), at))
        except ConfigError as error:
            faults.append(error)
    return tuple(built)


def _name(cls: type[Any], field: Field[Any], section: Section, place: str) -> str:
    """The name that a section gives to what it chooses, or that of its dataclass if it gives none."""
    key = field.metadata["key"]
    name = section.get(key)
    if name is None:
        name = next(other.default for other in dataclasses.fields(cls) if other.name == key)
    if name is dataclasses.MISSING:
        raise ConfigError(_key(place, field), "missing", f"Installed: {', '.join(field.metadata['registry'].names()) or 'none'}.")
    return name


def _key(place: str, field: Field[Any]) -> str:
    return f"{place}.{field.metadata['key']}"


def keyed_fields(cls: type[Any]) -> list[Field[Any]]:
    """The fields of a dataclass that a key of YAML sets."""
    return [field for field in dataclasses.fields(cls) if field.init and not field.metadata.get("derived")]


def chosen_fields(cls: type[Any]) -> list[Field[Any]]:
    """The fields of a section that take what a key of the same section names."""
    return [field for field in dataclasses.fields(cls) if "registry" in field.metadata]


def section_type(cls: type[Any], name: str) -> tuple[type[Any] | None, bool]:
    """The dataclass of a section within a section, None if the field is no section; and whether it may be left out."""
    hint = field_types(cls)[name]
    # To Python `X | Y` and `Union[X, Y]` are of two types.
    members: tuple[Any, ...] = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    inner = next((member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member)), None)
    return inner, type(None) in members


def listed_type(cls: type[Any], name: str) -> type[Any] | None:
    """The dataclass of each section in a list of sections; None if the field is no such list."""
    hint = field_types(cls)[name]
    item = (*typing.get_args(hint), None)[0] if typing.get_origin(hint) is tuple else None
    return item if isinstance(item, type) and dataclasses.is_dataclass(item) else None


@functools.cache
def _chooses(cls: type[Any]) -> bool:
    names = [field.name for field in keyed_fields(cls)]
    inner = [section_type(cls, name)[0] or listed_type(cls, name) for name in names]
    return bool(chosen_fields(cls)) or any(each is not None and _chooses(each) for each in inner)


def inherited_names(cls: type[Any], section: Section, place: str) -> dict[str, tuple[str, list[str]]]:
    """For each section that is `like` a neighbour: that neighbour, and the keys that are taken from it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for field in keyed_fields(cls):
        other = field.metadata.get("like")
        inner, _ = section_type(cls, field.name)
        if other is None or inner is None:
            continue
        own, neighbour = subsection(section, field.name, place), subsection(section, other, place)
        apart = {c.name for c in chosen_fields(inner) if own.get(c.metadata["key"], n := neighbour.get(c.metadata["key"])) != n}
        found[field.name] = other, [name for name in field.metadata["names"] if name not in own and name not in apart]
    return found


def with_inherited(cls: type[Any], section: Section, place: str) -> Section:
    """A section in which each section within it also has what it takes from a neighbour."""
    changed = dict(section)
    for name, (other, names) in inherited_names(cls, section, place).items():
        neighbour = subsection(section, other, place)
        taken = {key: neighbour[key] for key in names if key in neighbour}
        changed[name] = {**taken, **subsection(section, name, place)}
    return changed


def subsection(data: Section, name: str, place: str = "") -> Section:
    """The section of that name, empty if absent."""
    section: object = data.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{place}.{name}" if place else name, f"expected a section, found {section!r}")
    return cast("Section", section)


def keys(item: Any) -> list[str]:
    """The parameters of something registered."""
    return field_names(item) if isinstance(item, type) and dataclasses.is_dataclass(item) else []


def resolved(config: object) -> dict[str, Any]:
    """The configuration as plain nested containers with the keys that YAML uses, defaults filled in."""
    plain: dict[str, Any] = {}
    for field in keyed_fields(type(config)):
        value = getattr(config, field.name)
        if field.metadata.get("merged") and dataclasses.is_dataclass(value):
            plain.update(resolved(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            plain[field.name] = resolved(value)
        elif isinstance(value, tuple):
            entries = cast("tuple[Any, ...]", value)
            plain[field.name] = [resolved(entry) if dataclasses.is_dataclass(entry) else entry for entry in entries]
        else:
            plain[field.name] = value
    return plain


def meaning(config: object, key: str) -> str:
    """What a key means, as the field of its section says; "" if there is none that says it."""
    name, _, below = key.partition(".")
    for field in keyed_fields(type(config)):
        value = getattr(config, field.name)
        inner = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if field.metadata.get("merged") and inner:
            if said := meaning(value, key):
                return said
        elif field.name == name and below:
            return meaning(value, below) if inner else ""
        elif field.name == name:
            found = attributes(type(config)).get(name)
            return found.meaning if found else ""
    return ""


def chosen_parts(config: object, place: str = "", *, trains: bool = False) -> Iterator[tuple[str, bool, Any]]:
    """Everything that a configuration chose by name: where its parameters stand, whether only training needs it, and the thing."""
    for field in keyed_fields(type(config)):
        value = getattr(config, field.name)
        inner = f"{place}.{field.name}" if place else field.name
        needed = trains or bool(field.metadata.get("trains"))
        if "registry" in field.metadata:
            yield place if field.metadata["merged"] else inner, needed, value
            continue
        within: list[tuple[str, Any]] = [(inner, value)]
        if isinstance(value, tuple):
            within = [(f"{inner}[{number}]", entry) for number, entry in enumerate(cast("tuple[Any, ...]", value))]
        for at, section in within:
            if dataclasses.is_dataclass(section) and not isinstance(section, type):
                yield from chosen_parts(section, at, trains=needed)

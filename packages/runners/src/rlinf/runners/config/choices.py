"""Another type by name: the parameters that were written for the old one go.

A recipe names a model and its parameters. Where an override names another model, or a recipe another one than the recipe that
it builds on, those parameters that the new model does not know would be refused one by one; they are dropped instead. What the
override sets itself stays, as does what both types know, what belongs to the section, and what not even the old type knew, so
that a fault of the recipe stays one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from rlinf.core.config.provenance import DROPPED, Provenance, origin
from rlinf.core.config.reading import field_names
from rlinf.core.errors import ConfigError
from rlinf.core.registry import Registry
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.config.sections import Section, chosen_fields, keyed_fields, keys, section_type
from rlinf.runners.task_types import task_type_of


@dataclass(frozen=True, slots=True)
class Choices:
    """A section that names what it is made of."""

    section: str
    """Its dotted path."""
    schema: type[Any]
    """Its own dataclass."""
    names: Mapping[str, Registry[Any]]
    """The keys of the names."""
    params: str = ""
    """Where the parameters are, if not in the section itself."""
    like: str = ""
    """The section that says the names where this one does not."""


def choices_of(cls: type[Any], place: str = "", like: str = "") -> Iterator[Choices]:
    """All that the sections of a dataclass choose by name."""
    merged = {field.metadata["key"]: field.metadata["registry"] for field in chosen_fields(cls) if field.metadata["merged"]}
    if merged:
        yield Choices(place, cls, merged, like=like)
    for field in keyed_fields(cls):
        if field.metadata.get("merged") is False:
            yield Choices(place, cls, {field.metadata["key"]: field.metadata["registry"]}, field.name, like)
        elif "registry" not in field.metadata and (inner := section_type(cls, field.name)[0]) is not None:
            other = field.metadata.get("like")
            yield from choices_of(inner, _join(place, field.name), _join(place, other) if other else "")


def replace_parameters(
    before: Section,
    after: Section,
    *,
    explicit: Collection[str],
    provenance: Provenance | None = None,
    schema: type[RunConfig] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration without parameters of types that were replaced.

    Args:
        before: the configuration without overrides.
        after: the one with them.
        explicit: the dotted paths that the overrides set.
        provenance: where the values of `before` came from.
        schema: the run's dataclass; None for that of what `after` describes.

    Returns:
        The configuration, and why each dotted path that is gone went, as an entry of its provenance.
    """
    # Sections of it lose keys below, and `after` is the caller's.
    data, dropped = copy.deepcopy(dict(after)), dict[str, str]()
    for choices in choices_of(schema or task_type_of(after).config):
        if overridden_in_part(choices, explicit):
            _complete(choices, before, data)
        old, new = _chosen(choices, before), _chosen(choices, after)
        known = None if new is None or _folded(old) == _folded(new) else _known(choices, new)
        if known is None:
            continue
        params = f"{choices.section}.{choices.params}" if choices.params else choices.section
        section = _at(data, params)
        strange = section.keys() - {*known, *_own(choices)}
        # Only then is it worth importing the old type.
        known_before = _known(choices, old or {}) if strange else None
        for key in [key for key in section if key in strange and (known_before is None or key in known_before)]:
            path = f"{params}.{key}"
            if not any(each == path or each.startswith(f"{path}.") for each in explicit):
                del section[key]
                dropped[path] = f"{DROPPED}no parameter of {_told(choices, new or {})} ({origin(provenance or {}, path)})"
    return data, dropped


def overridden_in_part(choices: Choices, explicit: Collection[str]) -> bool:
    """Whether overrides set parameters, one by one, that a section may take from a neighbour."""
    path = f"{choices.section}.{choices.params}."
    return bool(choices.like and choices.params) and any(each.startswith(path) for each in explicit)


def _complete(choices: Choices, before: Section, data: dict[str, Any]) -> None:
    """Parameters that a section took from its neighbour stay, beside those that overrides set: they are of the same thing."""
    own, like = _at(data, choices.section), _at(data, choices.like or "")
    other = any(own.get(key, like.get(key)) != like.get(key) for key in choices.names)
    # A section that had parameters of its own took none of its neighbour's.
    if not other and choices.params not in _at(before, choices.section):
        own[choices.params] = {**_at(like, choices.params), **_at(own, choices.params)}


def _at(data: Section, path: str) -> dict[str, Any]:
    """The section at a dotted path; an empty one if there is none."""
    for name in path.split("."):
        inner: object = data.get(name)
        data = cast("Section", inner) if isinstance(inner, Mapping) else {}
    return cast("dict[str, Any]", data)


def _chosen(choices: Choices, data: Section) -> dict[str, str] | None:
    """The name at each key; None where one is no name, which is refused later."""
    section, like = _at(data, choices.section), _at(data, choices.like) if choices.like else {}
    defaults = {f.name: f.default for f in dataclasses.fields(choices.schema)}
    found = {key: section.get(key) or like.get(key) or defaults.get(key) for key in choices.names}
    return cast("dict[str, str]", found) if all(isinstance(name, str) for name in found.values()) else None


def _folded(names: Mapping[str, str] | None) -> dict[str, str]:
    # `module:attr` is Python's, where case counts.
    return {key: name if ":" in name else name.casefold() for key, name in (names or {}).items()}


def _known(choices: Choices, names: Mapping[str, str]) -> set[str] | None:
    """The parameters of what was chosen; None if that is not known."""
    try:
        return {key for name in choices.names for key in keys(choices.names[name].get(names[name]))}
    except (ConfigError, KeyError):
        return None


def _own(choices: Choices) -> list[str]:
    """The keys that belong to the section itself."""
    return [] if choices.params else field_names(choices.schema)


def _told(choices: Choices, names: Mapping[str, str]) -> str:
    return " or ".join(f"the {registry.kind} '{names[key]}'" for key, registry in choices.names.items())


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name

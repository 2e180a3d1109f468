"""Where each configuration value came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlinf.core.errors import UnknownName, nearest

Provenance = Mapping[str, str]
"""Dotted path → origin ("command line", "maniskill_ppo_mlp.yaml"). A path that is absent has its schema's default."""

DEFAULT = "default of the schema"
DROPPED = "dropped, "
"""How the origin of a value begins that is no longer there, because what it belonged to was replaced."""


def flatten(config: object, place: str = "") -> dict[str, Any]:
    """Dotted path → value, for dataclasses and mappings; other values are leaves."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        entries = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    elif isinstance(config, Mapping):
        entries = dict(cast("Mapping[str, Any]", config))
    else:
        return {place: config}
    # An empty section is a value, which would else be lost.
    if not entries:
        return {place: {}}
    flat: dict[str, Any] = {}
    for key, value in entries.items():
        flat.update(flatten(value, f"{place}.{key}" if place else str(key)))
    return flat


def origin(provenance: Provenance, path: str) -> str:
    """The origin of a path: its own, or that of the nearest section that was set as a whole."""
    while path:
        if path in provenance:
            return provenance[path]
        path = path.rpartition(".")[0]
    return DEFAULT


def explain(config: object, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`: path = value  (origin). Values that were dropped follow, with the reason.

    Raises:
        UnknownName: the configuration has no such key.
    """
    flat = flatten(config)
    lines = [f"{path} = {value!r}  ({origin(provenance, path)})" for path, value in flat.items() if _below(path, key)]
    dropped = [path for path, text in provenance.items() if text.startswith(DROPPED) and _below(path, key)]
    lines += [f"{path}: {provenance[path]}" for path in dropped]
    if not lines:
        raise UnknownName(key, "no such key in the configuration", _nearby(key, list(flat)))
    return "\n".join(lines)


def _nearby(key: str, paths: Sequence[str]) -> str:
    """The key that was probably meant, and what the section that it names has; a whole configuration would fill screens."""
    section, _, name = key.rpartition(".")
    while section and not any(path.startswith(f"{section}.") for path in paths):
        section, _, name = section.rpartition(".")
    begin = f"{section}." if section else ""
    names = sorted({path[len(begin) :].partition(".")[0] for path in paths if path.startswith(begin)})
    # One of the same name in another section is as likely as one that is spelled alike.
    same = [path for path in paths if path.rpartition(".")[2] == key.rpartition(".")[2]]
    meant = same if len(same) == 1 else [f"{begin}{guess}" for guess in (nearest(name, names),) if guess]
    hint = f"Did you mean '{meant[0]}'? " if meant else ""
    return f"{hint}Keys{section and f' of {section}'}: {', '.join(names)}. The name of a section lists all below it."


def _below(path: str, key: str) -> bool:
    return not key or path == key or path.startswith(f"{key}.")

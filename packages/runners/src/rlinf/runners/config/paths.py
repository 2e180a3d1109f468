"""Which values of a configuration are paths, and where they lead from another directory or after the run was moved.

A value is a path if its key says so: `path`, `dir`, `folder`, `file`, `root`, `profile`, or a plural of one, alone or after an
underscore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rlinf.core.errors import ConfigError

_KEY = re.compile(r"(.*_)?(path|dir|folder|file|root|profile)s?")
_LOGS = "log_path"
_WRITTEN = (_LOGS, "save_dir")
"""Paths that a run makes, so that they need not be there."""


def absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with paths that are there, seen from this directory, made absolute.

    Other values, such as the name of a model on a hub, stay as they are.
    """

    def absolute(key: str, value: str) -> str:
        path = os.path.expanduser(value)  # this and `exists` never raise, whatever the value is
        return os.path.abspath(path) if value and (key in _WRITTEN or os.path.exists(path)) else value

    return _changed(config, absolute)


def demonstrations_path(config: Mapping[str, Any]) -> str:
    """The folder in which a recipe looks for its demonstrations.

    Raises:
        ConfigError: it names none.
    """
    algorithm: Mapping[str, Any] = config.get("algorithm") or {}
    sections: list[Mapping[str, Any]] = [config.get("data") or {}]
    sections += [algorithm.get(name) or {} for name in ("demo_buffer", "co_training")]
    path = next((section["path"] for section in sections if "path" in section), None)
    if not isinstance(path, str):
        problem = "this recipe names no folder for its dataset (nor algorithm.demo_buffer.path or co_training.path)"
        raise ConfigError("data.path", problem, "Set it, or --out.")
    return path


def moved_paths(config: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The configuration of a run whose folder has moved: paths that are gone are looked for where its logs are now.

    Args:
        config: as the run's checkpoint has it.
        run: where the folder of the run is now.
    """
    logs = config.get("runner", {}).get("logger", {}).get(_LOGS)
    if not isinstance(logs, str):
        return dict(config)

    def moved(key: str, value: str) -> str:
        old = Path(value)
        if key in _WRITTEN or not old.is_relative_to(logs) or os.path.exists(old):
            return value
        new = run.parent / old.relative_to(logs)
        return str(new) if os.path.exists(new) else value

    return _changed(config, moved)


def path_values(config: Mapping[str, Any]) -> Iterator[Path]:
    """All paths of a configuration."""
    found: list[Path] = []

    def note(key: str, value: str) -> str:
        found.append(Path(value))
        return value

    _changed(config, note)
    return iter(found)


def _changed(config: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """A copy in which `change(key, value)` stands for each path."""
    return {key: _value(key, value, change) for key, value in config.items()}


def _value(key: str, value: Any, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, Mapping):
        return _changed(cast("Mapping[str, Any]", value), change)
    if isinstance(value, list | tuple):
        return [_value(key, each, change) for each in cast("list[Any]", value)]
    return change(key, value) if isinstance(value, str) and _KEY.fullmatch(key) else value

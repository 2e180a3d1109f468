"""The metadata of a public checkpoint: which robots its statistics are of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.actor_config import MISSING_STATISTICS

METADATA: Final = "experiment_cfg/metadata.json"
"""Where a folder has the statistics of robots."""


def read_metadata(folder: Path) -> dict[str, Any]:
    """By robot; empty if the folder has none."""
    path = folder / METADATA
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def check_statistics(tag: str, parts: Mapping[str, Sequence[str]], path: str, place: str, actions: int | None) -> None:
    """Refuses a folder without the robot's statistics, or with those of another number of actions.

    Args:
        tag: the robot.
        parts: which parts of its state and action; see `ranges`.
        path: of the folder.
        place: the section, for messages.
        actions: of how many they must be, if that is known.

    Raises:
        ConfigError: the message has both sides.
    """
    metadata = read_metadata(Path(path).expanduser())
    if tag not in metadata:
        has = f"the robots {', '.join(sorted(metadata))}" if metadata else f"no robot ({METADATA} is missing)"
        problem = f"'{path}' has statistics of {has}, and none of '{tag}'"
        raise ConfigError(f"{place}.embodiment_tag", problem, MISSING_STATISTICS.format(model="gr00t"))
    for kind, keys in parts.items():
        try:
            size = len(ranges(metadata, tag, kind, keys)[0])
        except CheckpointError as error:
            raise ConfigError(f"{place}.{kind}_keys", f"'{path}': {error.problem}", "Name parts of the file.") from error
        if kind == "action" and actions not in (None, size):
            problem = f"the statistics of '{tag}' in '{path}' are of {size} actions, and the environment takes {actions}"
            remedy = "Choose its parts with action_keys, another robot, or its environment."
            raise ConfigError(f"{place}.embodiment_tag", problem, remedy)


def ranges(
    metadata: Mapping[str, Any], embodiment_tag: str, kind: str, keys: Sequence[str] = ()
) -> tuple[list[float], list[float]]:
    """The least and the greatest of all parts of a robot, one after the other.

    Args:
        metadata: of `experiment_cfg/metadata.json`: by tag, `statistics`, by kind and part `min` and `max`.
        embodiment_tag: the robot.
        kind: "state" or "action".
        keys: the parts and their order; that of the file if none.

    Raises:
        CheckpointError: the robot or a part is not there.
    """
    if embodiment_tag not in metadata:
        raise CheckpointError("metadata.json", f"expected the robot '{embodiment_tag}', found {list(metadata)}")
    parts = metadata[embodiment_tag]["statistics"][kind]
    missing = [key for key in keys if key not in parts]
    if missing:
        raise CheckpointError(f"metadata.json.{kind}", f"expected the parts {missing}, found {list(parts)}")
    chosen = [parts[key] for key in keys or parts]
    low, high = ([x for part in chosen for x in part[name]] for name in ("min", "max"))
    return low, high

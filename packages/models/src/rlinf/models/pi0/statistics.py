"""The statistics of a folder of openpi or LeRobot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlinf.core.errors import ConfigError, below, did_you_mean
from rlinf.models import statistics
from rlinf.models.actor_config import MISSING_STATISTICS

_FILE: Final = "norm_stats.json"
_PROCESSOR: Final = "policy_preprocessor_step_*_normalizer_processor.safetensors"


def read_statistics(folder: Path, asset_id: str | None = None) -> dict[str, Mapping[str, Any]]:
    """By `states` and `actions`: mean, std, q01, q99, as far as the folder has them; empty if it has none.

    Args:
        folder: has `norm_stats.json`, or `assets/<asset_id>/norm_stats.json`, as openpi writes them; or LeRobot's normaliser.
        asset_id: which of several.

    Raises:
        ConfigError: there is none of that name, or there are several and none is named.
    """
    assets = {str(file.parent.relative_to(folder / "assets")): file for file in sorted(folder.glob(f"assets/**/{_FILE}"))}
    if asset_id is not None and asset_id not in assets:
        hint = did_you_mean(asset_id, list(assets), label="There are")
        raise ConfigError("asset_id", f"'{folder}' has no statistics assets/{asset_id}/{_FILE}", hint)
    whole = folder / _FILE
    if asset_id is None and len(assets) > 1 and not whole.is_file():
        raise ConfigError("asset_id", f"'{folder}' has statistics of {', '.join(assets)}", "Choose one of them.")
    if asset_id is not None or assets or whole.is_file():
        file = assets[asset_id] if asset_id else whole if whole.is_file() else next(iter(assets.values()))
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        content = content.get("norm_stats", content)
        return {ours: content[theirs] for ours, theirs in (("states", "state"), ("actions", "actions")) if theirs in content}
    processor = next(iter(sorted(folder.glob(_PROCESSOR))), None)
    found = {} if processor is None else statistics.read_statistics(processor)
    return {ours: found[theirs] for ours, theirs in (("states", "state"), ("actions", "action")) if theirs in found}


def checked_statistics(model: str, path: str, asset_id: str | None, place: str) -> Mapping[str, Any]:
    """The statistics of actions in a folder, by name.

    Args:
        model: its registered name.
        path: of the folder.
        asset_id: which of several.
        place: the section, for messages.

    Raises:
        ConfigError: there are none.
    """
    found = checked_asset(Path(path).expanduser(), asset_id, place)
    if "actions" not in found:
        problem = f"'{path}' has no statistics of actions ({_FILE}, assets/<asset_id>/{_FILE}, or LeRobot's normaliser)"
        raise ConfigError(f"{place}.model_path", problem, MISSING_STATISTICS.format(model=model))
    return found["actions"]


def expect_size(of: str, found: Mapping[str, Any], wanted: int, largest: int, place: str, path: str) -> None:
    """Refuses statistics of another number of states or actions than an environment has.

    Args:
        of: `states` or `actions`, for messages.
        found: arrays by name.
        wanted: how many numbers the environment has.
        largest: how many the model has room for; published statistics may be padded to that.
        place: the key, for messages.
        path: of the folder.

    Raises:
        ConfigError: the message has both sides.
    """
    size = min(len(values) for name, values in found.items() if name != "count")
    if size < wanted or wanted < size < largest:
        problem = f"the statistics in '{path}' are of {size} {of}, and the environment has {wanted}"
        raise ConfigError(place, problem, "Choose the folder of this robot, or its environment.")


def checked_asset(folder: Path, asset_id: str | None, place: str) -> Mapping[str, Mapping[str, Any]]:
    """The statistics of a folder.

    Raises:
        ConfigError: a name is unknown or needed; the message has `place`.
    """
    try:
        return read_statistics(folder, asset_id)
    except ConfigError as error:
        raise below(place, error) from error

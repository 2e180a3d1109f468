"""What is refused of the files of a LeRobot dataset before a frame is read. Only imported when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np

from rlinf.core.errors import ConfigError
from rlinf.envs.offline._mp4 import frame_count

parquet: Any = importlib.import_module("pyarrow.parquet")

T = TypeVar("T")
AGAIN: Final = "Copy it again, or record it anew."


def _read(folder: Path, path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise no_file(folder, path) from error
    except (OSError, ValueError) as error:
        problem = f"'{path.relative_to(folder)}' of '{folder}' can't be read ({error})"
        raise ConfigError("dataset.path", problem, AGAIN) from error


def _refuse_fewer(folder: Path, path: Path, found: int, frames: int) -> None:
    if found < frames:
        problem = f"found {found} frames in '{path.relative_to(folder)}' of '{folder}', expected {frames}"
        raise ConfigError("dataset.path", problem, AGAIN)


def check_data(folder: Path, path: Path, frames: int, stored: Sequence[str]) -> None:
    footer = _read(folder, path, parquet.read_metadata)
    _refuse_fewer(folder, path, footer.num_rows, frames)
    there = set(footer.schema.to_arrow_schema().names)
    lacking = next((feature for feature in stored if feature not in there), None)
    if lacking is not None:
        raise ConfigError("dataset.path", f"'{path.relative_to(folder)}' of '{folder}' has no '{lacking}'", AGAIN)


def check_film(folder: Path, path: Path, frames: int) -> None:
    found = _read(folder, path, frame_count)
    if found is not None:
        _refuse_fewer(folder, path, found, frames)


def check_statistics(folder: Path, feature: str, shape: tuple[int, ...], about: object) -> None:
    """Refuses what can't be true of numbers; for the bounds of actions it is believed."""
    place, remedy = f"'{feature}' in 'meta/stats.json' of '{folder}'", f"{AGAIN} Without this file it is read, too."
    found = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
    try:
        numbers = {name: np.asarray(found.get(name, np.zeros(shape)), float) for name in ("min", "max", "mean", "std")}
    except (TypeError, ValueError) as error:
        raise ConfigError("dataset.path", f"{place} holds no numbers ({error})", remedy) from error
    for name, values in numbers.items():
        if values.shape != shape:
            problem = f"{name} of {place} has the shape {list(values.shape)}, the feature {list(shape)}"
            raise ConfigError("dataset.path", problem, remedy)
    if (numbers["std"] < 0).any() or ("min" in found and "max" in found and (numbers["min"] > numbers["max"]).any()):
        raise ConfigError("dataset.path", f"{place} has a min above its max, or an std below 0", remedy)


def no_file(folder: Path, path: Path) -> ConfigError:
    return ConfigError("dataset.path", f"'{folder}' has no file '{path.relative_to(folder)}'", AGAIN)

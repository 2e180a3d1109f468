"""Plain parquet files, with pyarrow. Only imported when one is written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.recording.episode import Episode

pa: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")


def write_episode(path: Path, episode: Episode) -> None:
    arrays = {"action": episode.actions} | {f"observation.{key}": array[:-1] for key, array in episode.observations.items()}
    if episode.policy_actions is not None:
        arrays["policy_action"] = episode.policy_actions
    columns = {key: column(array) for key, array in arrays.items()}
    if episode.intervened is not None:
        columns["intervened"] = pa.array(episode.intervened)
    for key in ("rewards", "terminated", "truncated", "success"):
        columns["reward" if key == "rewards" else key] = pa.array(getattr(episode, key))
    about: dict[str, Any] = {"task": episode.task, "seed": episode.seed}
    about["arrays"] = {key: {"shape": list(array.shape[1:]), "dtype": str(array.dtype)} for key, array in arrays.items()}
    table = pa.table(columns).replace_schema_metadata({"rlinf": json.dumps(about)})
    parquet.write_table(table, path, compression="zstd")


def column(array: NDArray[Any]) -> Any:
    """An array `[T, *]` as a column: numbers as they are, vectors as lists of fixed length, the rest as bytes."""
    if array.ndim == 1:
        return pa.array(array)
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
    return pa.array([np.ascontiguousarray(row).tobytes() for row in array], pa.binary())

"""The `infos` of several processes as those of one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.wrappers.episodes import Infos

_STATISTICS = {"success_once": np.bool_, "success_at_end": np.bool_, "return": np.float32, "episode_len": np.int32}


def join(parts: Sequence[tuple[int, Infos]]) -> Infos:
    """The `infos` of consecutive shards, one behind the other.

    Args:
        parts: for each shard how many environments it has, and its `infos`: arrays whose first axis is that long, plain values, and
            mappings of these. A key that one shard lacks is zero there; of plain values the first one counts.
    """
    if len(parts) == 1:
        return parts[0][1]
    keys = list(dict.fromkeys(key for _, infos in parts for key in infos))
    return {key: _join([(n, infos.get(key)) for n, infos in parts]) for key in keys}


def _join(parts: Sequence[tuple[int, Any]]) -> Any:
    # In a partial batch, answers to resets lack the keys of a step.
    known = next(value for _, value in parts if value is not None)
    if isinstance(known, dict):
        return join([(n, value or {}) for n, value in parts])
    if not isinstance(known, np.ndarray):
        return known
    array = cast("NDArray[Any]", known)
    return np.concatenate([np.zeros((n, *array.shape[1:]), array.dtype) if value is None else value for n, value in parts])


def truncate(infos: Infos, last: Infos | None, rows: NDArray[np.bool_]) -> Infos:
    """The `infos` of episodes that were cut off because their process failed: what was known of them last.

    Args:
        infos: of the step that was not taken; empty if the process took none.
        last: of the step before, or None if there was none.
        rows: `[n]`, the episodes in question.
    """
    n = len(rows)
    if last is None:
        last = {"success": np.zeros(n, np.bool_), "episode": {key: np.zeros(n, dtype) for key, dtype in _STATISTICS.items()}}
    made = _mix(infos, last, rows) if infos else dict(last)
    ended: NDArray[np.bool_] = np.zeros(n, np.bool_) | infos.get("_episode", False)
    ended[rows] = True
    return {**made, "_episode": ended}


def _mix(infos: Infos, last: Infos, rows: NDArray[np.bool_]) -> Infos:
    mixed = dict(infos)
    for key, value in last.items():
        if isinstance(value, dict):
            mixed[key] = _mix(mixed.get(key, {}), cast("Infos", value), rows)
        elif isinstance(mixed.get(key), np.ndarray):
            mixed[key] = np.where(rows.reshape(-1, *[1] * (mixed[key].ndim - 1)), value, mixed[key])
    return mixed

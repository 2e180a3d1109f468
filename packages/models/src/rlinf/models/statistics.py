"""Statistics that normalise states and actions: computed from data, merged, and read as other projects write them.

A quantity's statistics are arrays by name, each `[D]`: `mean`, `std`, `min`, `max`, `q01`, `q99`, `mask`, and `count` `[]`; what a
layout doesn't have is absent. `Normalizer.set_statistics` takes them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from rlinf.core.errors import CheckpointError, ConfigError, ShapeError, did_you_mean

Statistics = dict[str, NDArray[Any]]
"""By name, of one quantity."""

NAMES: Final = ("mean", "std", "min", "max", "q01", "q99", "mask", "count")
FILES: Final = (
    "statistics.json",
    "dataset_statistics.json",
    "norm_stats.json",
    "assets/**/norm_stats.json",
    "experiment_cfg/metadata.json",
    "policy_preprocessor_step_*_normalizer_processor.safetensors",
    "meta/stats.json",
    "config.json",
)
"""Where statistics may be below a folder, the first one found counts: ours, OpenVLA's, openpi's, GR00T's, LeRobot's."""

_OURS: Final[Mapping[str, str]] = {"actions": "action", "proprio": "state", "observation.state": "state"}


class RunningStatistics:
    """Statistics of a stream of vectors, and of several streams together.

    Mean, deviation, least and greatest are exact (Chan, Golub & LeVeque, "Algorithms for computing the sample variance" (1983),
    pairwise). Quantiles are exact up to `keep` vectors; of more they are those of a uniform sample of `keep`, whose rank is off
    by √(q (1 − q) / keep): 0.03 percentage points for the 1 % quantile and the default.

    Args:
        size: D.
        keep: the vectors that are kept for the quantiles.
        seed: chooses the sample; shards that are merged need different ones.
    """

    def __init__(self, size: int, *, keep: int = 100_000, seed: int = 0) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(size)
        self.squares: NDArray[np.float64] = np.zeros(size)
        self.least: NDArray[np.float64] = np.full(size, np.inf)
        self.greatest: NDArray[np.float64] = np.full(size, -np.inf)
        self.keep = keep
        self._sample: NDArray[np.float64] = np.zeros((0, size))
        self._lot: NDArray[np.float64] = np.zeros(0)
        # Lots that equal made-up data of the same seed would choose the least values instead of any.
        self._random = np.random.default_rng((seed, 0x51A75))

    def update(self, values: ArrayLike) -> None:
        """Adds vectors.

        Args:
            values: `[*, D]`, finite.

        Raises:
            ShapeError: the last axis has another size.
            ConfigError: a value is not finite.
        """
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim == 0 or rows.shape[-1] != len(self.mean):
            raise ShapeError("values", f"expected [*, {len(self.mean)}], found {list(rows.shape)}")
        rows = rows.reshape(-1, len(self.mean))
        if not np.isfinite(rows).all():
            raise ConfigError("values", "expected finite numbers, found infinity or not a number", "Leave such rows out.")
        # No rows have no mean.
        if len(rows):
            mean = rows.mean(axis=0)
            squares = ((rows - mean) ** 2).sum(axis=0)
            self._add(len(rows), mean, squares, rows.min(axis=0), rows.max(axis=0), rows, self._random.random(len(rows)))

    def merge(self, other: RunningStatistics) -> None:
        """Adds all that another one has seen.

        Raises:
            ShapeError: its vectors have another size.
        """
        if len(other.mean) != len(self.mean):
            raise ShapeError("merge", f"expected vectors of {len(self.mean)}, found {len(other.mean)}")
        if other.count:
            self._add(other.count, other.mean, other.squares, other.least, other.greatest, other._sample, other._lot)

    def statistics(self) -> Statistics:
        """All of `NAMES` but the mask.

        Raises:
            ConfigError: there was no vector.
        """
        if not self.count:
            raise ConfigError("statistics", "expected at least one vector, found none")
        low, high = np.quantile(self._sample, [0.01, 0.99], axis=0)
        # Of the population, as np.std and openpi have it.
        deviation = np.sqrt(self.squares / self.count)
        named = {"mean": self.mean, "std": deviation, "min": self.least, "max": self.greatest, "q01": low, "q99": high}
        return {**{name: array.copy() for name, array in named.items()}, "count": np.asarray(self.count)}

    def _add(
        self,
        count: int,
        mean: NDArray[np.float64],
        squares: NDArray[np.float64],
        least: NDArray[np.float64],
        greatest: NDArray[np.float64],
        sample: NDArray[np.float64],
        lot: NDArray[np.float64],
    ) -> None:
        total, shift = self.count + count, mean - self.mean
        self.squares = self.squares + squares + shift**2 * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count, self.least, self.greatest = total, np.minimum(self.least, least), np.maximum(self.greatest, greatest)
        # Each vector draws a lot once; the smallest lots are a uniform sample, whatever the order of merging.
        self._sample, self._lot = np.concatenate((self._sample, sample)), np.concatenate((self._lot, lot))
        if len(self._lot) > self.keep:
            chosen = np.argpartition(self._lot, self.keep)[: self.keep]
            self._sample, self._lot = self._sample[chosen], self._lot[chosen]


_open: Any = safe_open


def compute_statistics(values: ArrayLike) -> Statistics:
    """Statistics of an array `[*, D]`, quantiles included all exact; see `RunningStatistics`."""
    rows = np.asarray(values)
    running = RunningStatistics(rows.shape[-1] if rows.ndim else 0, keep=max(rows.size, 1))
    running.update(rows)
    return running.statistics()


def write_statistics(path: Path, statistics: Mapping[str, Mapping[str, ArrayLike]]) -> None:
    """Writes statistics by quantity (`action`, `state`, …) as JSON, in our own layout."""
    plain = {
        quantity: {name: np.asarray(array).tolist() for name, array in named.items()} for quantity, named in statistics.items()
    }
    path.write_text(json.dumps({"format": "rlinf-statistics", "statistics": plain}, indent=1), encoding="utf-8")


def read_statistics(path: Path, *, dataset: str | None = None) -> dict[str, Statistics]:
    """Statistics by quantity, from any of the public layouts; which one, the content decides.

    Args:
        path: a file, or a folder with one of `FILES`.
        dataset: which of several: OpenVLA's `unnorm_key`, GR00T's embodiment tag. Not needed if there is one.

    Returns:
        `action` and `state` where the layout has one of each; for GR00T `action.<part>`, `state.<part>`; other features keep
        their names.

    Raises:
        CheckpointError: there is no such file, or it is damaged or of no known layout.
        ConfigError: `dataset` is unknown, or needed.
    """
    file = _find(path)
    if file.suffix == ".safetensors":
        return _checked(_processor(file), file)
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), f"can't be read ({error})", "Use another file.") from error
    return _checked(_layout(content, file, dataset), file)


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    found = [file for pattern in FILES for file in sorted(path.glob(pattern))]
    if not found:
        raise CheckpointError(str(path), "no statistics there", f"Name the file, or a folder with one of {', '.join(FILES)}.")
    return found[0]


def _layout(content: Any, file: Path, dataset: str | None) -> dict[str, dict[str, Any]]:
    """By quantity and name, as it stands there."""
    sections: dict[str, Any] = {key: value for key, value in _items(content) if isinstance(value, dict)}
    # Ours; openpi's file, or OpenVLA's config.json; in all others the entries are at the top.
    inner = dict(_items(sections.get("statistics") or sections.get("norm_stats") or sections))
    if _quantities(inner):
        return {_OURS.get(quantity, quantity): named for quantity, named in inner.items()}
    datasets = {name: _of_dataset(value) for name, value in inner.items() if _of_dataset(value)}
    if not datasets:
        raise CheckpointError(str(file), "no statistics there that are known", "OpenVLA, openpi, LeRobot and GR00T are.")
    if dataset is None and len(datasets) == 1:
        dataset = next(iter(datasets))
    if dataset is None or dataset not in datasets:
        hint = did_you_mean(dataset or "", list(datasets), label="There are")
        raise ConfigError("dataset", f"expected one of those in {file}, found {dataset!r}", hint)
    return datasets[dataset]


def _of_dataset(value: Any) -> dict[str, dict[str, Any]]:
    """What one entry has: OpenVLA's `{"action": …, "proprio": …}`, or GR00T's `{"statistics": {"action": {"<part>": …}}}`."""
    entry = dict(_items(value))
    found: dict[str, dict[str, Any]] = {}
    for quantity, named in _items(entry.get("statistics", entry)):
        if _named(named):
            found[_OURS.get(quantity, quantity)] = named
        elif _quantities(named):
            found |= {f"{_OURS.get(quantity, quantity)}.{part}": inner for part, inner in named.items()}
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    """Those of a mapping; of anything else none."""
    return list(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else []


def _named(value: Any) -> bool:
    """Whether it is `{"mean": [...], …}`."""
    return any(name in ("mean", "min", "q01") and isinstance(numbers, list) for name, numbers in _items(value))


def _quantities(value: Any) -> bool:
    items = _items(value)
    return bool(items) and all(_named(named) for _, named in items)


def _processor(file: Path) -> dict[str, dict[str, Any]]:
    """LeRobot's normaliser: one flat tensor for each `<feature>.<name>`."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with _open(file, framework="pt") as opened:
            for key in cast("list[str]", opened.keys()):
                feature, _, name = key.rpartition(".")
                # By way of float64, for NumPy has no bfloat16.
                found.setdefault(_OURS.get(feature, feature), {})[name] = opened.get_tensor(key).double().numpy()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(str(file), f"can't be read ({error})", "Use another file.") from error
    return found


def _checked(statistics: Mapping[str, Mapping[str, Any]], file: Path) -> dict[str, Statistics]:
    """As arrays, of one size and finite."""
    found: dict[str, Statistics] = {}
    for quantity, named in statistics.items():
        arrays = {name: np.asarray(named[name], dtype=bool if name == "mask" else np.float64) for name in NAMES if name in named}
        sizes = {name: array.shape for name, array in arrays.items() if name != "count"}
        if len(set(sizes.values())) > 1:
            raise CheckpointError(f"{file}: {quantity}", f"expected one size, found {sizes}")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise CheckpointError(f"{file}: {quantity}.{name}", f"expected finite numbers, found {array.tolist()}")
        found[quantity] = arrays
    return found

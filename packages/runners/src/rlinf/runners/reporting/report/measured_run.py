"""What a run's folder holds, read back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.errors import ConfigError
from rlinf.runners.checkpoints.run_folder import RunFolder

Points = list[tuple[float, float]]
ENV_STEPS = "env/steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run that may go on, may have ended, or may have failed."""

    folder: RunFolder
    rows: tuple[Mapping[str, float], ...]
    """What was logged of each iteration, in order; numbers that came later, as those of an evaluation, are in its row."""
    summary: Mapping[str, Any] | None
    """The result; None if the run has not come to its end."""
    config: Mapping[str, Any] | None
    """The recipe as it was composed; None before the first checkpoint."""

    @classmethod
    def read(cls, path: Path) -> MeasuredRun:
        """Reads what is there.

        Args:
            path: the folder of a run.

        Raises:
            ConfigError: it is not the folder of a run, or one of its files is damaged.
        """
        folder = RunFolder(path)
        if not folder.metrics.is_file():
            problem = f"'{path}' holds no {folder.metrics.name}"
            raise ConfigError("rlinf report", problem, "Name the folder of a run, such as logs/maniskill_ppo_mlp.")
        rows: dict[float, dict[str, float]] = {}
        for number, line in enumerate(folder.metrics.read_text(encoding="utf-8").splitlines(), start=1):
            row = cast(dict[str, float], _parsed(line, f"{folder.metrics}:{number}"))
            step = row["step"]
            if step < next(reversed(rows), step):
                # A run that was resumed logs again what came after its checkpoint; what it left behind is no part of it.
                rows = {earlier: found for earlier, found in rows.items() if earlier < step}
            rows.setdefault(step, {}).update(row)
        checkpoint = newest_checkpoint(folder.checkpoints) if folder.checkpoints.is_dir() else None
        return cls(
            folder=folder,
            rows=tuple(rows.values()),
            summary=_read(folder.summary),
            config=None if checkpoint is None else _read(checkpoint / "config.json"),
        )

    @property
    def name(self) -> str:
        """The experiment and its seed."""
        found = self.summary or {}
        named = found.get("experiment", self.folder.path.name)
        return f"{named}, seed {found['seed']}" if "seed" in found else str(named)

    @property
    def scalars(self) -> list[str]:
        """The names of what was logged, in the order in which they appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))

    def points(self, name: str, along: str) -> Points:
        """Where a scalar was logged, and what it was; what is not finite is left out."""
        found = [(float(row[along]), float(row[name])) for row in self.rows if name in row and along in row]
        return [(x, y) for x, y in found if math.isfinite(x) and math.isfinite(y)]

    def mean(self, name: str) -> float:
        """The mean of a scalar over iterations."""
        values = [value for _, value in self.points(name, "step")]
        return sum(values) / len(values)

    def transcripts(self) -> list[Mapping[str, Any]]:
        """The problems of the last evaluation, or of the last iteration if nothing was evaluated."""
        if not self.folder.transcripts.is_file():
            return []
        last: dict[str, tuple[int, list[Mapping[str, Any]]]] = {}
        for entry in _transcripts(self.folder.transcripts):
            step, kind = int(entry["step"]), str(entry["kind"])
            if kind not in last or last[kind][0] != step:
                last[kind] = (step, [])
            last[kind][1].append(entry)
        return last.get("eval", last.get("train", (0, [])))[1]

    @property
    def settings(self) -> dict[str, str]:
        """The configuration as dotted keys and their values."""
        return dict(_flat(self.config or {}))


def _transcripts(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            yield _parsed(line, f"{path}:{number}")


def _read(path: Path) -> Mapping[str, Any] | None:
    return _parsed(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None


def _parsed(text: str, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(place, f"expected a JSON object ({error})", "Repair or remove it.") from error
    if not isinstance(found, dict):
        raise ConfigError(place, f"expected a JSON object, found {type(found).__name__}", "Repair or remove it.")
    return cast(Mapping[str, Any], found)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        # An empty section is a value, which would be lost otherwise.
        if isinstance(each, Mapping) and each:
            yield from _flat(cast(Mapping[str, Any], each), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(each, ensure_ascii=False, default=str)

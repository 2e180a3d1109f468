"""Episodes as plain files, one for each: NumPy's own format, or parquet."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import RLinfError
from rlinf.core.registry import require_modules
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.files import FolderLock, replaced

_OBSERVATION = "observation."


class _NumberedFiles(ABC):
    """Files `episode_<number><suffix>` in a folder that this process alone writes to."""

    def __init__(self, folder: str | Path, suffix: str) -> None:
        self._folder, self._suffix = Path(folder), suffix
        self._lock = FolderLock(self._folder)
        # Files that are not complete begin with a dot, which the pattern doesn't match.
        self._count = len(list(self._folder.glob(f"episode_*{suffix}")))

    @property
    def count(self) -> int:
        return self._count

    def write(self, episode: Episode) -> None:
        with replaced(self._folder / f"episode_{self._count:06d}{self._suffix}") as part:
            self._write(part, episode)
        self._count += 1

    def close(self) -> None:
        """Lets others write to the folder."""
        self._lock.release()

    @abstractmethod
    def _write(self, path: Path, episode: Episode) -> None:
        """Writes a file."""


class NumpyWriter(_NumberedFiles):
    """Writes `episode_000000.npz`, `episode_000001.npz`, …; `read_numpy` reads one back.

    The arrays of a file are `actions`, `rewards`, `terminated`, `truncated`, `success`, and `observation.<key>` with one entry
    more; `intervened` and `policy_actions` where there was an expert; `task` and `seed` are in `about`, a JSON text. A file is
    complete as soon as it has its name. A folder that holds episodes is continued.

    Args:
        folder: where to write; made if missing.

    Raises:
        RLinfError: another process writes there, or the folder can't be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder, ".npz")

    def _write(self, path: Path, episode: Episode) -> None:
        about = json.dumps({"task": episode.task, "seed": episode.seed})
        arrays: dict[str, Any] = {_OBSERVATION + key: array for key, array in episode.observations.items()}
        arrays |= {"actions": episode.actions, "rewards": episode.rewards, "terminated": episode.terminated}
        arrays |= {"truncated": episode.truncated, "success": episode.success, "about": np.array(about)}
        expert = {"intervened": episode.intervened, "policy_actions": episode.policy_actions}
        arrays |= {key: array for key, array in expert.items() if array is not None}
        # Given a path, NumPy would add `.npz` to the name of the part.
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)


class ParquetWriter(_NumberedFiles):
    """Writes `episode_000000.parquet`, …, a row for each step; what was seen after the last action is not kept.

    Columns: `action` and one `observation.<key>` for each key (lists of numbers; images as bytes, row by row), `reward`,
    `terminated`, `truncated`, `success`; `intervened` and `policy_action` where there was an expert. The schema's metadata hold,
    under `rlinf`, a JSON text with the shape and type of each array, `task` and `seed`. Crash safety and continuation are those
    of `NumpyWriter`.

    Args:
        folder: where to write; made if missing.

    Raises:
        MissingExtra: pyarrow is not installed.
        RLinfError: another process writes there, or the folder can't be written.
    """

    def __init__(self, folder: str | Path) -> None:
        require_modules("pyarrow", place="recording", extra="rlinf-envs[recording]")
        super().__init__(folder, ".parquet")

    def _write(self, path: Path, episode: Episode) -> None:
        from rlinf.envs.recording._parquet import write_episode

        write_episode(path, episode)


def read_numpy(path: str | Path) -> Episode:
    """The episode that `NumpyWriter` wrote.

    Raises:
        RLinfError: it is not such a file.
    """
    try:
        # allow_pickle stays off: a file from an unknown source can't execute anything.
        with np.load(path) as stored:
            arrays: dict[str, NDArray[Any]] = {key: stored[key] for key in stored.files}
        about: dict[str, Any] = json.loads(str(arrays.pop("about")))
        observations = {key.removeprefix(_OBSERVATION): arrays.pop(key) for key in list(arrays) if key.startswith(_OBSERVATION)}
        return Episode(observations=observations, task=about["task"], seed=about["seed"], **arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _not_an_episode(path, error) from error


def numpy_length(path: str | Path) -> int:
    """Steps of an episode that `NumpyWriter` wrote, of which only the rewards are read.

    Raises:
        RLinfError: it is not such a file.
    """
    try:
        with np.load(path) as stored:
            return len(stored["rewards"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _not_an_episode(path, error) from error


def _not_an_episode(path: str | Path, error: Exception) -> RLinfError:
    return RLinfError("recording", f"{path} is not an episode: {error}", "Read files that NumpyWriter wrote.")

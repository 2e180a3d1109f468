"""Episodes that `NumpyWriter` wrote, read back: the one format of recordings that keeps final observations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rlinf.core.config import expect_at_least
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineEpisode, OfflineSource
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.recording.plain import numpy_length, read_numpy

_TEXTS = "task_descriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyEpisodes:
    """What an environment recorded with `data_collection.export_format: numpy`."""

    path: str
    """The folder of `episode_*.npz`, or one with several of these in it, such as the `train_0`, `train_1` of a recording."""
    episodes: int | None = None
    """How many are read, from the first on; null takes all."""

    def __post_init__(self) -> None:
        expect_at_least("episodes", self.episodes, 1, "null takes all.")

    def check(self, place: str) -> None:
        """Refuses a folder without episodes; reads none.

        Raises:
            ConfigError: there are none.
        """
        try:
            _files(self.path)
        except ConfigError as error:
            raise ConfigError(f"{place}.path", error.problem, error.remedy) from None

    def open(self) -> OfflineSource:
        """Looks which episodes there are.

        Raises:
            ConfigError: there are none.
        """
        return NumpySource(self)


class NumpySource:
    """An `OfflineSource` over a folder of files.

    Args:
        config: which.
    """

    lacks: tuple[str, ...] = ()

    def __init__(self, config: NumpyEpisodes) -> None:
        self._config = config
        self._files = _files(config.path)[: config.episodes]

    @property
    def name(self) -> str:
        """Its path."""
        return self._config.path

    @property
    def spec(self) -> EnvSpec:
        """What the first episode shows, whose length stands for that of all; bounds of actions are not recorded."""
        first = self._first
        observation = {key: ArraySpec(shape=leaf.shape[1:], dtype=str(leaf.dtype)) for key, leaf in first.observation.items()}
        if first.task:
            observation[_TEXTS] = ArraySpec(shape=(), dtype=f"<U{len(first.task)}")
        action = ArraySpec(shape=first.action.shape[1:], dtype=str(first.action.dtype))
        return EnvSpec(observation=observation, action=action, max_episode_steps=len(first))

    @property
    def features(self) -> tuple[str, ...]:
        """The keys of its observations."""
        return tuple(self._first.observation)

    def __len__(self) -> int:
        return len(self._files)

    def episode_lengths(self) -> list[int]:
        """See `rlinf.core.data.offline.KnowsLengths`; observations stay on the disk.

        Raises:
            ConfigError: a file is no such episode.
        """
        return list(map(_length, self._files))

    def episodes(self) -> Iterator[OfflineEpisode]:
        """See `OfflineSource`.

        Raises:
            ConfigError: a file is no such episode.
        """
        for number, file in enumerate(self._files):
            yield _episode(number, file)

    @cached_property
    def _first(self) -> OfflineEpisode:
        return next(self.episodes())


def _length(file: Path) -> int:
    try:
        return numpy_length(file)
    except RLinfError as error:
        raise ConfigError("dataset.path", error.problem, error.remedy) from error


def _episode(number: int, file: Path) -> OfflineEpisode:
    try:
        read = read_numpy(file)
    except RLinfError as error:
        raise ConfigError("dataset.path", error.problem, error.remedy) from error
    arrays = {"actions": read.actions, "rewards": read.rewards, "terminated": read.terminated, "truncated": read.truncated}
    lengths = {name: len(array) for name, array in arrays.items()}
    lengths |= {f"observation.{key}": len(leaf) - 1 for key, leaf in read.observations.items()}
    if len(set(lengths.values())) != 1 or not len(read):
        problem = f"expected one observation more than actions, and at least one action, in '{file}', found {lengths}"
        raise ConfigError("dataset.path", problem, "Leave the file out, or record it again.")
    truncated = np.array(read.truncated, np.bool_)
    # A recording that ends without a flag was cut there.
    truncated[-1] |= not read.terminated[-1]
    reward, terminated = np.asarray(read.rewards, np.float32), np.asarray(read.terminated, np.bool_)
    return replace(read.recorded(number), reward=reward, terminated=terminated, truncated=truncated)


def _files(path: str) -> list[Path]:
    """The episodes of a folder, or of those in it, in order.

    Raises:
        ConfigError: there is none.
    """
    folder = Path(path).expanduser()
    # Numbers have leading zeros, so that the order of names is that of the recording.
    found = sorted(folder.glob("episode_*.npz")) or sorted(folder.glob("*/episode_*.npz"))
    if not found:
        what = "no such folder" if not folder.is_dir() else "no episode_*.npz in it, nor one folder below"
        remedy = "Record some: env.train.data_collection.export_format=numpy and its save_dir."
        raise ConfigError("dataset.path", f"expected recorded episodes at '{path}', found {what}", remedy)
    return found

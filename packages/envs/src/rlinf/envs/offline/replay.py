"""Replay buffers as datasets: what a run collected, read from its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import OfflineEpisode, OfflineSource
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.replay.saved import STATE, SavedBuffer
from rlinf.core.replay.saved_episodes import SavedEpisode, saved_episodes, saved_spec

_ACTORS: Final = f"replay_*/{STATE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What off-policy runs collected: the replay buffers in their checkpoints."""

    path: str
    """A run's folder, of which the newest checkpoint is taken; a `global_step_N`; or the folder of a buffer, such as one that
    `rlinf replay merge` wrote."""
    episodes: int | None = None
    """How many are read, from the first on; null takes all."""
    skip_damaged: bool = False
    """Leave out the producers whose files are damaged; by default they are refused."""

    def __post_init__(self) -> None:
        expect_at_least("episodes", self.episodes, 1, "null takes all.")

    def check(self, place: str) -> None:
        """Refuses what is no replay buffer, and one with damaged files.

        Raises:
            ConfigError: the message names the file.
        """
        try:
            len(self.open())
        except ConfigError as error:
            raise ConfigError(f"{place}.path", error.problem, error.remedy) from None

    def open(self) -> OfflineSource:
        """Reads what describes the buffers.

        Raises:
            ConfigError: there is none, or they differ.
        """
        return ReplaySource(self)


class ReplaySource:
    """An `OfflineSource` over the replay buffers of all actors of a run.

    Args:
        config: which.
        skipped: is told each error that `skip_damaged` passes over.
    """

    lacks: tuple[str, ...] = ()

    def __init__(self, config: Replay, *, skipped: Callable[[CheckpointError], object] = lambda _: None) -> None:
        self._config, self._skipped = config, skipped
        try:
            self.buffers = [SavedBuffer(folder) for folder in buffer_folders(config.path)]
        except CheckpointError as error:
            raise ConfigError("dataset.path", str(error)) from error
        # A buffer to which nothing was added yet has no columns to compare.
        filled = [buffer for buffer in self.buffers if buffer.columns]
        if not filled:
            raise ConfigError("dataset.path", f"the replay buffer in '{config.path}' is empty", "Choose a later checkpoint.")
        if any(_described(buffer) != _described(filled[0]) for buffer in filled):
            raise ConfigError("dataset.path", f"the buffers in '{config.path}' differ in what they hold", "Name one of them.")

    @property
    def name(self) -> str:
        """Its path."""
        return self._config.path

    @property
    def spec(self) -> EnvSpec:
        """What was seen and decided; bounds of actions are not recorded."""
        return saved_spec(next(buffer for buffer in self.buffers if buffer.columns))

    @property
    def features(self) -> tuple[str, ...]:
        """The keys of its observations."""
        return tuple(self.spec.observation)

    def __len__(self) -> int:
        return len(self._lengths)

    def episode_lengths(self) -> list[int]:
        return self._lengths

    def episodes(self) -> Iterator[OfflineEpisode]:
        """See `OfflineSource`.

        Raises:
            ConfigError: a file is missing or damaged.
        """
        for saved in self.saved():
            yield saved.episode

    def saved(self) -> Iterator[SavedEpisode]:
        """The same, with what is known of where they begin and end."""
        number, last = 0, self._config.episodes
        for buffer in self.buffers:
            for shard in buffer.shards:
                try:
                    for saved in saved_episodes(buffer, shard, first=number):
                        if number == last:
                            return
                        yield saved
                        number += 1
                except CheckpointError as error:
                    if not self._config.skip_damaged:
                        remedy = "Skip it by skip_damaged, on a command line by --skip-damaged."
                        raise ConfigError("dataset.path", f"{error.place}: {error.problem}", remedy) from error
                    self._skipped(error)

    @cached_property
    def _lengths(self) -> list[int]:
        """Steps of each episode."""
        # A buffer keeps transitions: where episodes begin and end is known when they are read.
        return [len(saved.episode) for saved in self.saved()]


def buffer_folders(path: str) -> list[Path]:
    """The folders of buffers that a path stands for, see `Replay.path`.

    Raises:
        ConfigError: there is none.
    """
    folder = Path(path).expanduser()
    if (folder / STATE).is_file():
        return [folder]
    checkpoint = newest_checkpoint(folder) if folder.is_dir() else None
    for holder in (folder, folder / "actor", *([checkpoint / "actor"] if checkpoint is not None else [])):
        found = sorted(holder.glob(_ACTORS))
        if found:
            return [each.parent for each in found]
    what = f"no {STATE} in it, and no checkpoint of an off-policy run" if folder.is_dir() else "no such folder"
    raise ConfigError("dataset.path", f"expected a replay buffer at '{path}', found {what}", "Name a run or a checkpoint.")


def _described(buffer: SavedBuffer) -> object:
    # Priorities say how transitions were drawn, not what they are.
    return {name: of for name, of in buffer.columns.items() if name != "priority"}

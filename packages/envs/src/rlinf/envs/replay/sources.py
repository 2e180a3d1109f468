"""What `rlinf replay` reads: replay buffers, and datasets of episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import OfflineEpisode, OfflineSource
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.replay.saved_episodes import SavedEpisode
from rlinf.envs.offline.lerobot import LeRobot
from rlinf.envs.offline.minari import Minari
from rlinf.envs.offline.numpy_files import NumpyEpisodes
from rlinf.envs.offline.replay import Replay, ReplaySource

Skipped = Callable[[RLinfError], object]
TEXTS = "task_descriptions"


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset that was opened."""

    kind: str
    """"replay", "lerobot", "minari" or "numpy"."""
    path: Path
    opened: OfflineSource
    skipped: Skipped | None
    """Told of what is damaged and left out; None: damage is an error."""

    def episodes(self) -> Iterator[SavedEpisode]:
        """All that is whole, one by one.

        Raises:
            RLinfError: something is damaged, and is not to be skipped.
        """
        if isinstance(self.opened, ReplaySource):
            yield from self.opened.saved()
            return
        try:
            for episode in self.opened.episodes():
                yield SavedEpisode(episode, begun=True, ended=True)
        except RLinfError as error:
            # One episode can't be told from the next in these formats.
            if self.skipped is None:
                raise
            self.skipped(error)


def open_source(path: Path, skipped: Skipped | None) -> Source:
    """A folder, by what is in it.

    Raises:
        ConfigError: it is none of these, or can't be read.
    """
    try:
        return _opened(path, skipped)
    except ConfigError as error:
        # A dataset names the keys of a run's configuration, of which there is none here.
        raise ConfigError("rlinf replay", error.problem, error.remedy) from error


def _opened(path: Path, skipped: Skipped | None) -> Source:
    folder = path.expanduser()
    if not folder.is_dir():
        raise ConfigError("rlinf replay", f"there is no folder '{path}'", "Name a run, a checkpoint, a buffer or a dataset.")
    name = str(folder)
    if (folder / "meta" / "info.json").is_file() or any(folder.glob("*/meta/info.json")):
        config = LeRobot(path=name)
        # Of a damaged one that is asked for all the same, what comes before the damage is read.
        (config.check if skipped is None else config.check_metadata)("rlinf replay")
        return Source("lerobot", path, config.open(), skipped)
    if any((folder / "data").glob("main_data.*")) or (folder / "data" / "metadata.json").is_file():
        return Source("minari", path, Minari(dataset=name, per_key=True).open(), skipped)
    if any(folder.glob("episode_*.npz")) or any(folder.glob("*/episode_*.npz")):
        return Source("numpy", path, NumpyEpisodes(path=name).open(), skipped)
    config = Replay(path=name, skip_damaged=skipped is not None)
    return Source("replay", path, ReplaySource(config, skipped=skipped or (lambda _: None)), skipped)


def common_spec(sources: Sequence[Source]) -> EnvSpec:
    """What all sources hold: the same keys, shapes and types.

    Raises:
        ConfigError: two differ; the message names both.
    """
    first, spec = sources[0], sources[0].opened.spec
    for other in sources[1:]:
        for what, ours, theirs in _compared(spec, other.opened.spec):
            if ours != theirs:
                problem = f"{what} is {ours} in '{first.path}', and {theirs} in '{other.path}'"
                raise ConfigError("rlinf replay", problem, "Take those of one environment and one policy.")
    return spec


def judged(
    sources: Sequence[Source], *, min_return: float | None = None, only_success: bool = False
) -> Iterator[tuple[bool, OfflineEpisode]]:
    """All episodes, and whether each passes.

    Raises:
        ConfigError: success is asked for, and a source does not record it.
    """
    for source in sources:
        for saved in source.episodes():
            episode = saved.episode
            if only_success and episode.success is None:
                problem = f"'{source.path}' ({source.kind}) does not record success"
                raise ConfigError("--only-success", problem, "Use --min-return.")
            solved = not only_success or bool(episode.success is not None and episode.success.any())
            yield solved and (min_return is None or float(episode.reward.sum()) >= min_return), episode


def _compared(one: EnvSpec, other: EnvSpec) -> Iterator[tuple[str, object, object]]:
    seen, theirs = ({key: of for key, of in spec.observation.items() if key != TEXTS} for spec in (one, other))
    yield "what is seen", sorted(seen), sorted(theirs)
    for key in seen.keys() & theirs.keys():
        yield f"'{key}'", (seen[key].dtype, seen[key].shape), (theirs[key].dtype, theirs[key].shape)
    yield "an action", (one.action.dtype, one.action.shape), (other.action.dtype, other.action.shape)

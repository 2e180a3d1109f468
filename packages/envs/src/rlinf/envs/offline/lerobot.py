"""LeRobot datasets, format v3.0, read back. Importing this imports no reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf.core.config import expect_at_least
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.envs.actions.formats import ACTION_FORMATS, InvertibleFormat
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.lerobot import LeRobotWriter

if TYPE_CHECKING:
    from rlinf.envs.offline._lerobot import LeRobotSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobot:
    """A dataset that `RecordEpisodes` or LeRobot itself wrote.

    What a policy sees has the names that environments give it. Of the features that `LeRobotWriter` writes they are known:
    `observation.state` is `states`, `observation.images.main` is `main_images`, `….wrist` is `wrist_images`, `….extra_0`,
    `….extra_1` and so on are the views of `extra_view_images`, and `observation.<key>` is `<key>`. `keys` names those of others.
    """

    path: str
    """The folder of a dataset, or one with several of equal features in it, such as the `rank_0`, `rank_1` of a recording."""
    keys: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict[str, Any])
    """The feature of each thing that a policy sees: `{main_images: observation.images.top}`; a list for several views."""
    action: str = "action"
    """The feature that is learned."""
    episodes: int | None = None
    """How many are read, from the first on; null takes all."""
    action_format: Mapping[str, Any] | None = None
    """A registered action format with its parameters, such as `{type: gripper, source: …, target: …}`, that a policy's actions pass
    on their way to the simulator: what was recorded, in units of the simulator, goes it backwards. null: recorded as decided."""

    def __post_init__(self) -> None:
        expect_at_least("episodes", self.episodes, 1, "null takes all.")
        if self.action_format is not None:
            self.build_format()

    def build_format(self) -> InvertibleFormat | None:
        """The action format.

        Raises:
            ConfigError: there is no such, or it can't be undone.
        """
        if self.action_format is None:
            return None
        parameters = dict(self.action_format)
        name = parameters.pop("type", "")
        made = ACTION_FORMATS.build(name, parameters, place="action_format")
        if not isinstance(made, InvertibleFormat):
            raise ConfigError("action_format.type", f"'{name}' loses something and can't be undone", "Choose one with an inverse.")
        return made

    def check(self, place: str) -> None:
        """Refuses a missing reader, and what `check_metadata` and `LeRobotSource.check_files` refuse; reads no frames.

        Raises:
            MissingExtra: pyarrow, Pillow or imageio is not installed.
            ConfigError: there is no dataset of format v3, nothing in it, or it is damaged.
        """
        self._check(place, lambda source: source.check_files())

    def check_metadata(self, place: str) -> None:
        """Refuses a missing reader, and a folder that is no such dataset or has no episodes.

        Raises:
            MissingExtra: pyarrow, Pillow or imageio is not installed.
            ConfigError: there is no dataset of format v3, or nothing in it.
        """
        self._check(place, lambda _: None)

    def _check(self, place: str, look: Callable[[LeRobotSource], None]) -> None:
        require_modules("pyarrow", "PIL", "imageio", "imageio_ffmpeg", place=place, extra="rlinf-envs[recording]")
        try:
            look(self.open())
        except ConfigError as error:
            # A source names its keys below `dataset`, which stands at another place here.
            inner = error.place.removeprefix("dataset")
            raise ConfigError(f"{place}{inner}", error.problem, error.remedy) from None

    def open(self) -> LeRobotSource:
        """Reads the metadata.

        Raises:
            ConfigError: see `check`; a feature that `keys` names is not there.
        """
        from rlinf.envs.offline._lerobot import LeRobotSource

        return LeRobotSource(self)

    def as_recorded(self) -> LeRobot:
        return replace(self, action_format=None)

    def grown(self, folder: str) -> LeRobot:
        """See `rlinf.core.data.offline.GrowsDataset`; the features have the names that `LeRobotWriter` gives them."""
        return LeRobot(path=folder, action_format=self.action_format)

    def append(self, folder: str, episodes: Iterable[OfflineEpisode], *, keep: int) -> int:
        """See `rlinf.core.data.offline.GrowsDataset`; images are stored as PNG, so that what is read is what was seen."""
        written = list(episodes)
        info = json.loads((dataset_folders(self.path)[0] / "meta" / "info.json").read_text(encoding="utf-8"))
        # One file for all of them, which is committed with the last one.
        writer = LeRobotWriter(
            folder,
            fps=round(info["fps"]),
            robot_type=str(info.get("robot_type") or ""),
            finalize_interval=len(written) + 1,
            use_videos=False,
            keep=keep,
        )
        try:
            for episode in written:
                writer.write(_labelled(episode))
        except BaseException:
            # Not `close`, which would commit the episodes before the one that failed.
            writer.discard()
            raise
        writer.close()
        return writer.count


def dataset_folders(path: str) -> list[Path]:
    """The folders with a dataset that a path means.

    Raises:
        ConfigError: there is none, or some beside episodes of another format.
    """
    folder = Path(path).expanduser()
    if (folder / "meta" / "info.json").is_file():
        return [folder]
    inside = sorted(info.parent.parent for info in folder.glob("*/meta/info.json"))
    if not inside:
        found = "no such folder" if not folder.is_dir() else f"no meta/info.json in '{path}', nor one folder below"
        raise ConfigError(
            "dataset.path", f"expected a LeRobot dataset at '{path}', found {found}", "Record one, or name its folder."
        )
    # A mixture must not lack a part without a word.
    other = sorted(file.parent for file in folder.glob("*/episode_*") if file.parent not in inside)
    if other:
        problem = f"the episodes in '{other[0]}' are in no LeRobot dataset, unlike those in '{inside[0]}' beside it"
        raise ConfigError("dataset.path", problem, "Record them in that format, or name one folder.")
    return inside


def _labelled(episode: OfflineEpisode) -> Episode:
    """With an expert's columns, which all episodes of a dataset have or none; without a policy, all actions are the expert's."""
    acted, decided = episode.intervened, episode.policy_action
    return replace(
        Episode.of(episode),
        intervened=np.ones(len(episode), np.bool_) if acted is None else acted,
        policy_actions=episode.action if decided is None else decided,
    )

"""All choices of recording in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from gymnasium.vector import VectorEnv

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.envs.recording.episode import Writer
from rlinf.envs.recording.lerobot import LeRobotWriter
from rlinf.envs.recording.plain import NumpyWriter, ParquetWriter
from rlinf.envs.recording.wrapper import RecordEpisodes
from rlinf.envs.wrappers.episodes import expect_success

_HELD: Final = {"lerobot": "meta/info.json", "numpy": "episode_*.npz", "parquet": "episode_*.parquet"}
"""What a folder holds that was recorded in each format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Which episodes are kept, and how."""

    training_only: ClassVar[bool] = False

    save_dir: str
    """The folder; the environments of each slot write to a folder of their own in it, such as `train_0`."""
    export_format: Literal["lerobot", "numpy", "parquet"] = "lerobot"
    """LeRobot v3, or a file for each episode."""
    only_success: bool = False
    """Leave out episodes that were never solved."""
    max_episodes: int | None = None
    """Episodes of each folder, those of earlier runs too, after which no more are kept; None: no limit."""
    fps: int = 20
    """Control steps a second; for LeRobot."""
    robot_type: str = ""
    """For LeRobot's metadata, such as `panda`."""
    finalize_interval: int = 1
    """Episodes for each file, for LeRobot: as many can be lost when the process is killed."""
    use_videos: bool = True
    """For LeRobot: images as videos; PNG images if false."""
    task: str = ""
    """The task in words, where observations don't say."""

    def check(self, place: str) -> None:
        """Refuses what would fail at the first episode.

        Raises:
            MissingExtra: a package that the format needs is not installed.
            ConfigError: no folder, or a number less than 1.
        """
        if not self.save_dir:
            raise ConfigError(f"{place}.save_dir", "no folder is named", "Name one.")
        numbers = {"fps": self.fps, "finalize_interval": self.finalize_interval, "max_episodes": self.max_episodes}
        for name, value in numbers.items():
            expect_at_least(f"{place}.{name}", value, 1, "Leave it out.")
        if self.export_format != "numpy":
            require_modules("pyarrow", place=place, extra="rlinf-envs[recording]")
        if self.export_format == "lerobot":
            require_modules("PIL", "imageio", "imageio_ffmpeg", place=place, extra="rlinf-envs[video]")

    def wrap(self, env: VectorEnv[Any, Any, Any], name: str = "episodes") -> RecordEpisodes:
        """The environment, recorded to `save_dir/<name>`, a folder that has no other writer."""
        self.check("recording")
        if self.only_success:
            expect_success(env, "recording.only_success", "Set it to false.")
        return RecordEpisodes(
            env,
            self._writer(Path(self.save_dir) / name),
            only_success=self.only_success,
            task=self.task,
            max_episodes=self.max_episodes,
        )

    def _writer(self, folder: Path) -> Writer:
        for other, held in _HELD.items():
            if other != self.export_format and any(folder.glob(held)):
                problem = f"'{folder}' holds episodes as {other}, and would hold others as {self.export_format}"
                raise ConfigError("recording.export_format", problem, f"Set {other} to go on with them, or another save_dir.")
        if self.export_format == "numpy":
            return NumpyWriter(folder)
        if self.export_format == "parquet":
            return ParquetWriter(folder)
        return LeRobotWriter(
            folder,
            fps=self.fps,
            robot_type=self.robot_type,
            finalize_interval=self.finalize_interval,
            use_videos=self.use_videos,
        )

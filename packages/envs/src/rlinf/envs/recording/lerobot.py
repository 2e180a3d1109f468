"""LeRobot datasets, format v3.0. Importing this imports neither pyarrow nor an encoder."""

from __future__ import annotations

from pathlib import Path

from rlinf.core.config import expect_at_least
from rlinf.core.registry import require_modules
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.files import FolderLock


class LeRobotWriter:
    """Writes a LeRobot dataset, format v3.0, as `lerobot` 0.4 reads it.

        meta/info.json  meta/stats.json  meta/tasks.parquet  meta/episodes/chunk-000/file-000.parquet
        data/chunk-000/file-000.parquet  videos/<feature>/chunk-000/file-000.mp4

    Features are `observation.state`, `observation.images.main`, `….wrist` and `….extra_0` (each view by its number),
    `observation.<key>` for other vectors, `action`, `next.reward`, `next.done`, `next.truncated` and `next.success`, and the
    indices of the format.

    Episodes are written as they come. After each `finalize_interval` episodes the files are closed and the metadata written, each
    file replaced as a whole: a process that is killed loses the episodes since then and nothing else, and a later writer continues
    the dataset. More episodes for a file make fewer and larger files.

    Args:
        folder: the root of the dataset; continued if there is one already.
        fps: control steps a second.
        robot_type: for the metadata, such as "panda".
        finalize_interval: episodes for each file.
        use_videos: images become videos (H.264, lossy); if not, PNG images within the parquet files.
        keep: goes on behind the first so many episodes, and removes the others; None goes on behind all. Files are removed as a
            whole, so that one must end there.

    Raises:
        MissingExtra: pyarrow or the encoder is not installed.
        ConfigError: a number is less than 1, the folder holds a dataset of another kind, or no file ends behind `keep` episodes.
        RLinfError: another process writes there, or the folder can't be written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        fps: int,
        robot_type: str = "",
        finalize_interval: int = 1,
        use_videos: bool = True,
        keep: int | None = None,
    ) -> None:
        for name, value in (("fps", fps), ("finalize_interval", finalize_interval)):
            expect_at_least(f"recording.{name}", value, 1, "Leave it out.")
        require_modules("pyarrow", place="recording", extra="rlinf-envs[recording]")
        require_modules("PIL", "imageio", "imageio_ffmpeg", place="recording", extra="rlinf-envs[video]")
        from rlinf.envs.recording._lerobot import Dataset

        self._lock = FolderLock(Path(folder))
        try:
            self._dataset = Dataset(
                Path(folder), fps=fps, robot_type=robot_type, interval=finalize_interval, use_videos=use_videos, keep=keep
            )
        except Exception:
            self._lock.release()
            raise

    @property
    def count(self) -> int:
        return self._dataset.count

    def write(self, episode: Episode) -> None:
        """Adds an episode.

        Raises:
            ConfigError: its features are not those of the dataset.
            RLinfError: it can't be written; the episodes before it stay.
        """
        self._dataset.write(episode)

    def discard(self) -> None:
        """Forgets the episodes since files were closed last, and ends as `close` does."""
        self._dataset.discard()
        self._lock.release()

    def close(self) -> None:
        """Completes the dataset; a second call does nothing."""
        try:
            self._dataset.close()
        finally:
            self._lock.release()

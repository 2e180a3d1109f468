"""A LeRobot dataset that grows, with pyarrow and imageio. Only imported when one is written."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import imageio
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.recording._parquet import column, pa, parquet
from rlinf.envs.recording.episode import Episode
from rlinf.envs.recording.files import replaced
from rlinf.envs.recording.frames import STATS, Feature, Frames, Stats, merged
from rlinf.envs.wrappers._video_file import failures_named

_VERSION = "v3.0"
_FILES_PER_CHUNK = 1000
_PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA = f"data/{_PATTERN}.parquet"
_VIDEO = "videos/{video_key}/" + f"{_PATTERN}.mp4"
_EPISODES = f"meta/episodes/{_PATTERN}.parquet"
# Every other frame is whole, so that any frame is found quickly; 18 is a quality at which no difference is seen.
_ENCODING = ("-crf", "18", "-g", "2", "-preset", "veryfast")
_imageio: Any = imageio


class Dataset:
    """The folder that a `LeRobotWriter` writes."""

    def __init__(
        self, folder: Path, *, fps: int, robot_type: str, interval: int, use_videos: bool, keep: int | None = None
    ) -> None:
        self._folder, self._fps, self._robot = folder, fps, robot_type
        self._interval, self._use_videos = interval, use_videos
        self._features: dict[str, Feature] | None = None
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Stats] = {}
        self._episodes = self._frames = self._files = 0
        self._shard: _Shard | None = None
        shutil.rmtree(self._staging, ignore_errors=True)
        # `info.json` is written last, so where it is missing nothing was ever committed.
        if (folder / "meta" / "info.json").exists():
            try:
                self._continue(keep)
            except (OSError, ValueError, KeyError) as error:
                problem = f"the dataset in {folder} can't be continued: {type(error).__name__} {error}"
                raise RLinfError(
                    "recording", problem, "Choose another folder; only datasets of this writer are continued."
                ) from error
        if keep is not None and self._episodes != keep:
            problem = f"expected {keep} episodes in {folder} to go on from, found {self._episodes}"
            raise ConfigError("recording", problem, "Files of it end elsewhere, or are gone: choose another folder.")

    @property
    def count(self) -> int:
        """Episodes, those that are not committed yet too."""
        return self._episodes + (len(self._shard.episodes) if self._shard is not None else 0)

    def write(self, episode: Episode) -> None:
        frames = Frames.of(episode)
        features = frames.features(fps=self._fps, use_videos=self._use_videos)
        self._refuse_change(features)
        self._features = features
        if self._shard is None:
            self._shard = _Shard(self._staging, features, self._fps)
        shard = self._shard
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        number, first = self._episodes + len(shard.episodes), self._frames + shard.frames
        stats = frames.stats() | _index_stats(frames, episode=number, first=first, task=task, fps=self._fps)
        row: dict[str, Any] = {"episode_index": number, "tasks": [episode.task], "length": len(episode)}
        row |= {"dataset_from_index": first, "dataset_to_index": first + len(episode)}
        row |= {f"stats/{key}/{name}": value.tolist() for key, of in stats.items() for name, value in of.items()}
        try:
            row |= shard.add(frames, frames.table(episode=number, first=first, task=task, fps=self._fps))
            shard.episodes.append(row)
            shard.stats.append(stats)
            if len(shard.episodes) == self._interval:
                self._commit()
        except BaseException:  # an interrupt, too: half an episode must not be committed by a close
            self.discard()
            raise

    def close(self) -> None:
        try:
            if self._shard is not None and self._shard.episodes:
                self._commit()
        finally:
            self.discard()

    @property
    def _staging(self) -> Path:
        return self._folder / ".staging"

    def discard(self) -> None:
        """Forgets the episodes since the last commit; what was committed stays."""
        if self._shard is not None:
            self._shard.discard()
            self._shard = None
        shutil.rmtree(self._staging, ignore_errors=True)

    def _commit(self) -> None:
        """Gives the files of the shard their names, then the metadata; `info.json` comes last and makes them count."""
        shard, features = self._shard, self._features
        if shard is None or features is None:
            return
        at = self._at()
        shard.close()
        for key, path in shard.videos.items():
            _move(path, self._folder / _VIDEO.format(video_key=key, **at))
        _move(shard.data, self._folder / _DATA.format(**at))
        prefixes = ["data", "meta/episodes", *(f"videos/{key}" for key in shard.videos)]
        where = {f"{prefix}/{name}": value for prefix in prefixes for name, value in at.items()}
        with replaced(self._folder / _EPISODES.format(**at)) as part:
            parquet.write_table(pa.Table.from_pylist([{**row, **where} for row in shard.episodes]), part)
        self._episodes += len(shard.episodes)
        self._frames += shard.frames
        self._files += 1
        self._shard = None
        for of in shard.stats:
            self._merge(of)
        _write_tasks(self._folder / "meta" / "tasks.parquet", self._tasks)
        self._write_totals(features)

    def _write_totals(self, features: Mapping[str, Feature]) -> None:
        stats = {key: {name: value.tolist() for name, value in of.items()} for key, of in self._stats.items()}
        _write_json(self._folder / "meta" / "stats.json", stats)
        _write_json(self._folder / "meta" / "info.json", self._info(features))

    def _info(self, features: Mapping[str, Feature]) -> dict[str, Any]:
        return {
            "codebase_version": _VERSION,
            "robot_type": self._robot,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            # Sizes at which LeRobot begins a new file; ours are cut by episodes.
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": _DATA,
            "video_path": _VIDEO if self._use_videos else None,
            "features": features,
        }

    def _continue(self, keep: int | None) -> None:
        """Takes up a dataset, and removes files beyond what `info.json` counts, which a killed process left, or beyond `keep`."""
        info = json.loads((self._folder / "meta" / "info.json").read_text())
        for name, wanted in (("codebase_version", _VERSION), ("fps", self._fps), ("robot_type", self._robot)):
            if info.get(name) != wanted:
                problem = f"the dataset in {self._folder} has {name} {info.get(name)!r}, and this run {wanted!r}"
                raise ConfigError("recording", problem, "Choose another folder.")
        self._features = info["features"]
        tasks = parquet.read_table(self._folder / "meta" / "tasks.parquet").to_pydict()
        self._tasks = dict(zip(tasks["task"], tasks["task_index"], strict=True))
        last, gone = min(info["total_episodes"], info["total_episodes"] if keep is None else keep), list[Path]()
        for path in sorted((self._folder / "meta" / "episodes").glob("*/*.parquet")):
            rows = parquet.read_table(path).to_pylist()
            if rows[0]["episode_index"] >= last:
                gone.append(path)
                continue
            self._files += 1
            for row in rows:
                self._count(row)
        if self._episodes < info["total_episodes"]:
            # Before the files go, so that no moment counts one that is gone.
            self._write_totals(info["features"])
        # A killed process leaves at most the files of one commit beyond those that are counted, and they have the next number.
        for number in range(self._files, self._files + len(gone) + 1):
            at = self._at(number)
            for name in (_DATA.format(**at), *(_VIDEO.format(video_key=key, **at) for key in info["features"])):
                (self._folder / name).unlink(missing_ok=True)
        for path in gone:
            path.unlink()

    def _at(self, number: int | None = None) -> dict[str, int]:
        """Where files go, by default the next ones."""
        number = self._files if number is None else number
        return {"chunk_index": number // _FILES_PER_CHUNK, "file_index": number % _FILES_PER_CHUNK}

    def _count(self, row: Mapping[str, Any]) -> None:
        """Adds an episode that is there already."""
        self._episodes += 1
        self._frames += row["length"]
        keys = sorted({name.split("/")[1] for name in row if name.startswith("stats/")})
        self._merge({key: {name: np.asarray(row[f"stats/{key}/{name}"]) for name in STATS} for key in keys})

    def _merge(self, stats: Mapping[str, Stats]) -> None:
        for key, of in stats.items():
            self._stats[key] = merged(self._stats[key], of) if key in self._stats else of

    def _refuse_change(self, features: Mapping[str, Feature]) -> None:
        former = self._features
        if former is not None and features != former:
            differ = sorted(key for key in {*former, *features} if former.get(key) != features.get(key))
            problem = f"the dataset in {self._folder} has other features; {', '.join(differ)} differ"
            raise ConfigError("recording", problem, "Write to another folder.")


class _Shard:
    """The files of some episodes while they grow, under names that no reader looks for."""

    def __init__(self, folder: Path, features: Mapping[str, Feature], fps: int) -> None:
        self.episodes: list[dict[str, Any]] = []
        self.stats: list[dict[str, Stats]] = []
        self.frames = 0
        self.data = folder / "data.parquet"
        self.videos = {key: folder / f"{key}.mp4" for key, feature in features.items() if feature["dtype"] == "video"}
        self._fps = fps
        self._images = [key for key, feature in features.items() if feature["dtype"] == "image"]
        self._parquet: Any = None
        self._films: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RLinfError("recording", f"{folder} can't be written: {error}", "Choose another folder.") from error

    def add(self, frames: Frames, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Writes the frames; the answer says where in the videos they are."""
        columns = {key: _png_column(frames.images[key]) for key in self._images}
        # LeRobot keeps what has the shape [1] as plain numbers.
        columns |= {key: column(array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array) for key, array in arrays.items()}
        table = pa.table(columns)
        try:
            if self._parquet is None:
                self._parquet = parquet.ParquetWriter(self.data, table.schema, compression="snappy")
            self._parquet.write_table(table)  # one row group for each episode
        except OSError as error:
            raise RLinfError("recording", f"{self.data} can't be written: {error}", "Look for a full disk.") from error
        for key, path in self.videos.items():
            with failures_named(path):
                for image in frames.images[key]:
                    self._add_frame(key, path).append_data(image)
        first = self.frames
        self.frames += table.num_rows
        span = {"from_timestamp": first / self._fps, "to_timestamp": self.frames / self._fps}
        return {f"videos/{key}/{name}": value for key in self.videos for name, value in span.items()}

    def close(self) -> None:
        """Completes the files."""
        self._parquet.close()
        for key, film in self._films.items():
            with failures_named(self.videos[key]):
                film.close()

    def discard(self) -> None:
        """Ends the encoders; the files are of no use."""
        for film in self._films.values():
            with contextlib.suppress(OSError, ValueError, StopIteration):
                film.close()

    def _add_frame(self, key: str, path: Path) -> Any:
        if key not in self._films:
            # With a `quality` imageio would add a -crf of its own, and with a block larger than 1 resize frames.
            settings = {"codec": "libx264", "quality": None, "macro_block_size": 1, "output_params": list(_ENCODING)}
            self._films[key] = _imageio.get_writer(path, fps=self._fps, **settings)
        return self._films[key]


def _index_stats(frames: Frames, *, episode: int, first: int, task: int, fps: int) -> dict[str, Stats]:
    arrays = frames.table(episode=episode, first=first, task=task, fps=fps)
    return Frames(vectors={key: array for key, array in arrays.items() if key not in frames.vectors}, images={}).stats()


def _png_column(images: NDArray[np.uint8]) -> Any:
    """Images as Hugging Face's datasets keep them."""
    rows: list[dict[str, Any]] = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG")
        rows.append({"bytes": buffer.getvalue(), "path": None})
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def _write_tasks(path: Path, tasks: Mapping[str, int]) -> None:
    """The numbers of the tasks, as pandas writes a frame whose index is the text: LeRobot reads it with pandas."""
    about = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": {"encoding": "UTF-8"}}
        ],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", "metadata": None},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
        ],
        "creator": {"library": "pyarrow", "version": importlib.import_module("pyarrow").__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(list(tasks.values()), pa.int64()), "task": pa.array(list(tasks), pa.string())})
    with replaced(path) as part:
        parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(about)}), part)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with replaced(path) as part:
        part.write_text(json.dumps(value, indent=4, ensure_ascii=False))


def _move(source: Path, target: Path) -> None:
    with replaced(target) as part:
        source.replace(part)

"""LeRobot's files read with pyarrow, Pillow and imageio. Only imported when a dataset is opened.

meta/info.json, tasks, episodes      read at once
data/*.parquet                       numbers: read with the first episode, and kept
images, videos                       decoded once into a temporary file that is mapped into memory, and has no name
"""

from __future__ import annotations

import importlib
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import Array, OfflineEpisode
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.offline._lerobot_damage import AGAIN, check_data, check_film, check_statistics, no_file
from rlinf.envs.offline._lerobot_files import column, film, rows, tasks
from rlinf.envs.offline.lerobot import LeRobot, dataset_folders
from rlinf.envs.recording.frames import INTERVENED, POLICY_ACTION

parquet: Any = importlib.import_module("pyarrow.parquet")

_HALF: Final = 0.5
"""Others write truth values as numbers."""
_IMAGES: Final = ("image", "video")
_CAMERAS: Final = {"main": "main_images", "wrist": "wrist_images", "extra": "extra_view_images"}
_TEXTS: Final = "task_descriptions"
_SEEN: Final = re.compile(r"observation\.(?:images\.(?P<camera>[a-z]+)(?:_(?P<view>\d+))?|(?P<key>\w+))")


class LeRobotSource:
    """An `OfflineSource` over the datasets of a folder.

    Args:
        config: which, and what is seen of them.

    Raises:
        ConfigError: there is none, nothing in it, they differ, or a feature is not there.
    """

    def __init__(self, config: LeRobot) -> None:
        self._config = config
        self._format = config.build_format()
        self._parts = [_Dataset(folder, config) for folder in dataset_folders(config.path)]
        first = self._parts[0]
        for other in self._parts[1:]:
            if other.features != first.features:
                differ = sorted(
                    key for key in {*first.features, *other.features} if first.features.get(key) != other.features.get(key)
                )
                problem = f"'{other.folder}' and '{first.folder}' differ in {', '.join(differ)}"
                raise ConfigError("dataset.path", problem, "Name one of them.")
            if other.fps != first.fps:
                problem = f"a step of '{other.folder}' takes 1/{other.fps:g} s, and one of '{first.folder}' 1/{first.fps:g} s (fps)"
                raise ConfigError("dataset.path", problem, "Name one of them.")
        left = sum(len(part.lengths) for part in self._parts) if config.episodes is None else config.episodes
        for part in self._parts:
            part.keep(left)
            # After `keep`, which forgets what is too much: what the part gives, not what it had.
            left -= len(part.lengths)
        self._lengths = [length for part in self._parts for length in part.lengths]
        if not self._lengths:
            raise ConfigError("dataset.path", f"'{config.path}' has no episodes", "Record some.")

    @property
    def name(self) -> str:
        """Its path."""
        return self._config.path

    @property
    def features(self) -> tuple[str, ...]:
        """The features that `meta/info.json` lists."""
        return tuple(self._parts[0].features)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Features that other tools leave out; without them rewards are 0 and episodes end by a cut."""
        return tuple(name for name in ("next.reward", "next.done") if name not in self._parts[0].features)

    @property
    def spec(self) -> EnvSpec:
        """By the names of environments; the bounds of actions are the least and the greatest that were recorded, if it says."""
        first = self._parts[0]
        observation = {key: first.seen(key) for key in first.keys}
        if all(task for part in self._parts for task in part.tasks):
            longest = max(len(task) for part in self._parts for task in part.tasks)
            observation[_TEXTS] = ArraySpec(shape=(), dtype=f"<U{longest}")
        return EnvSpec(observation=observation, action=self._action, max_episode_steps=max(self._lengths))

    def __len__(self) -> int:
        return len(self._lengths)

    def episode_lengths(self) -> list[int]:
        return self._lengths

    def check_files(self) -> None:
        """Refuses files that are not there, damaged, or with fewer frames than the metadata say; reads no frame.

        Raises:
            ConfigError: with the folder and the file.
        """
        for part in self._parts:
            part.check_files()

    def episodes(self) -> Iterator[OfflineEpisode]:
        number = 0
        for part in self._parts:
            for index in range(len(part.lengths)):
                yield part.episode(index, number, self._format)
                number += 1

    @property
    def _action(self) -> ArraySpec:
        shape = self._parts[0].shape(self._config.action)
        stats = [part.stats.get(self._config.action, {}) for part in self._parts]
        bounds: dict[str, Array] = {}
        if all("min" in each and "max" in each for each in stats):
            bounds = {
                "low": np.min([each["min"] for each in stats], axis=0),
                "high": np.max([each["max"] for each in stats], axis=0),
            }
        if self._format is not None:
            # Bounds are those of numbers; a format may mix columns, so that they tell nothing behind it.
            shape, bounds = self._format.inverse(np.zeros(shape)).shape, {}
        return ArraySpec(shape=shape, dtype="float32", **bounds)


class _Dataset:
    """The files of one folder."""

    def __init__(self, folder: Path, config: LeRobot) -> None:
        self.folder, self._config = folder, config
        try:
            info = json.loads((folder / "meta" / "info.json").read_text(encoding="utf-8"))
            version = str(info["codebase_version"])
            self.fps, self.features = float(info["fps"]), cast("dict[str, dict[str, Any]]", info["features"])
            if not version.startswith("v3"):
                remedy = "LeRobot's convert_dataset_v21_to_v30 brings older ones up to date."
                raise ConfigError("dataset.path", f"expected format v3 in '{folder}', found {version}", remedy)
            if not self.fps > 0.0:
                problem = f"expected fps above 0 in 'meta/info.json' of '{folder}', found {self.fps:g}"
                raise ConfigError("dataset.path", problem, AGAIN)
            self._paths = {"data": info["data_path"], "videos": info.get("video_path")}
            self._rows = [row for path in sorted((folder / "meta" / "episodes").glob("*/*.parquet")) for row in rows(path)]
            total = int(info["total_episodes"])
            if len(self._rows) < total:
                problem = f"'meta/info.json' of '{folder}' counts {total} episodes, found {len(self._rows)} in 'meta/episodes'"
                raise ConfigError("dataset.path", problem, AGAIN)
            # A writer that was killed leaves rows that `info.json` does not count yet.
            self._rows = self._rows[:total]
            frames = sum(self.lengths)
            if self._rows and frames < int(info.get("total_frames", frames)):
                problem = f"'meta/info.json' of '{folder}' counts {info['total_frames']} frames, its episodes have {frames}"
                raise ConfigError("dataset.path", problem, AGAIN)
            self.tasks = tasks(folder / "meta" / "tasks.parquet")
        except FileNotFoundError as error:
            # It can be no other: only a folder with an `info.json` is opened, and the files of episodes are found by a pattern.
            raise no_file(self.folder, folder / "meta" / "tasks.parquet") from error
        except KeyError as error:
            raise ConfigError("dataset.path", f"'meta/info.json' of '{folder}' has no {error}", AGAIN) from error
        except (OSError, ValueError) as error:
            raise ConfigError("dataset.path", f"'{folder}' can't be read ({error})", AGAIN) from error
        self.keys = self._named()
        self.shape(config.action)

    @property
    def lengths(self) -> list[int]:
        """Steps of each episode."""
        return [int(row["length"]) for row in self._rows]

    def check_files(self) -> None:
        frames: dict[Path, int] = {}
        for row in self._rows:
            path = self._data_file(row)
            frames[path] = frames.get(path, 0) + int(row["length"])
        stored = [name for name, about in self.features.items() if about["dtype"] != "video"]
        for path, expected in frames.items():
            check_data(self.folder, path, expected, stored)
        shown = [f for features, _ in self.keys.values() for f in features if self.features[f]["dtype"] == "video"]
        films: dict[Path, int] = {}
        for name, row in ((name, row) for name in shown for row in self._rows):
            path = self._film_file(name, row)
            # Several episodes share a film, each at a place of its own.
            films[path] = max(films.get(path, 0), self._first_frame(name, row) + int(row["length"]))
        for path, expected in sorted(films.items()):
            check_film(self.folder, path, expected)
        for name, about in self.stats.items():
            if name in self.features and self.features[name]["dtype"] not in (*_IMAGES, "string"):
                check_statistics(self.folder, name, self.shape(name), about)

    def keep(self, episodes: int) -> None:
        """Forgets all episodes but the first ones."""
        self._rows = self._rows[:episodes]

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """What `meta/stats.json` says, by feature; empty if there is none.

        Raises:
            ConfigError: it is no JSON of a mapping.
        """
        try:
            found: object = json.loads((self.folder / "meta" / "stats.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError("dataset.path", f"'meta/stats.json' of '{self.folder}' can't be read ({error})", AGAIN) from error
        if not isinstance(found, dict):
            raise ConfigError("dataset.path", f"'meta/stats.json' of '{self.folder}' is no mapping of features", AGAIN)
        return cast("dict[str, Any]", found)

    def shape(self, feature: str, key: str = "action") -> tuple[int, ...]:
        """Of one frame.

        Raises:
            ConfigError: there is no such feature.
        """
        if feature not in self.features:
            hint = did_you_mean(feature, list(self.features), label="Features")
            raise ConfigError(f"dataset.{key}", f"'{self.folder}' has no feature '{feature}'", hint)
        return tuple(int(size) for size in self.features[feature]["shape"])

    def seen(self, key: str) -> ArraySpec:
        """The description of what is seen under a key."""
        features, stacked = self.keys[key]
        about = self.features[features[0]]
        shape = self._image_shape(features[0]) if about["dtype"] in _IMAGES else self.shape(features[0])
        dtype = "uint8" if about["dtype"] in _IMAGES else str(about["dtype"])
        return ArraySpec(shape=(len(features), *shape) if stacked else shape, dtype=dtype)

    def episode(self, index: int, number: int, action_format: Any) -> OfflineEpisode:
        """Its episode `index` under the number that it has among all."""
        row = self._rows[index]
        span = slice(int(row["dataset_from_index"]), int(row["dataset_to_index"]))
        length = int(row["length"])
        observation: dict[str, Array] = {}
        for key, (features, stacked) in self.keys.items():
            arrays = [self._images[f][span] if f in self._images else self._numbers[f][span] for f in features]
            observation[key] = np.stack(arrays, axis=1) if stacked else arrays[0]
        action = self._numbers[self._config.action][span]
        intervened, policy_action = self._expert(span, length)
        reward, success = (self._column(f"next.{name}", span, length) for name in ("reward", "success"))
        terminated, truncated = self._ends(span, length, success > 0)
        texts = cast("list[Any]", row.get("tasks") or [])
        return OfflineEpisode(
            number=number,
            observation=observation,
            action=action if action_format is None else np.asarray(action_format.inverse(action), np.float32),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            task=str(texts[0]) if len(texts) else "",
            success=success > 0 if "next.success" in self._numbers else None,
            intervened=intervened,
            policy_action=policy_action,
        )

    def _ends(self, span: slice, length: int, success: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Where the task ended an episode, and where something else did, each `[T]` bool."""
        done = self._column("next.done", span, length) > 0
        if "next.truncated" in self._numbers:
            truncated = self._column("next.truncated", span, length) > 0
            terminated = done & ~truncated
        else:
            # What others write says no more than `done`: an episode ends by its success, unless it went on after one.
            terminated = done & success & (not success[:-1].any())
            truncated = done & ~terminated
        # Whatever the flags say, an episode ends where its data end.
        truncated[-1] = not terminated[-1]
        return terminated, truncated

    def _expert(self, span: slice, length: int) -> tuple[Array | None, Array | None]:
        """Where an expert acted, `[T]` bool, and what the policy decided, `[T, *]`; each None if it was not recorded."""
        acted = self._column(INTERVENED, span, length) > _HALF if INTERVENED in self._numbers else None
        return acted, self._numbers[POLICY_ACTION][span] if POLICY_ACTION in self._numbers else None

    def _column(self, name: str, span: slice, length: int) -> NDArray[np.float32]:
        """One number of each frame, `[T]`; zeros if it was not recorded."""
        values = self._numbers[name][span] if name in self._numbers else np.zeros(length)
        return values.reshape(length).astype(np.float32)

    @cached_property
    def _numbers(self) -> dict[str, Array]:
        """Every feature of numbers, `[frames, *]`, in the order of `index`."""
        names = [name for name, about in self.features.items() if about["dtype"] not in (*_IMAGES, "string")]
        tables = [parquet.read_table(path, columns=names) for path in self._data_files()]
        found: dict[str, Array] = {}
        for name in names:
            found[name] = np.concatenate([column(table.column(name), self.shape(name)) for table in tables])
        # Spans of episodes are numbers of frames by `index`, in whichever order the files have them.
        order = np.argsort(found["index"].reshape(-1), kind="stable") if "index" in found else slice(None)
        return {name: values[order] for name, values in found.items()}

    @cached_property
    def _images(self) -> dict[str, NDArray[np.uint8]]:
        """Every camera that is seen, `[frames, H, W, 3]`, decoded."""
        used = [name for features, _ in self.keys.values() for name in features if self.features[name]["dtype"] in _IMAGES]
        return {name: self._decoded(name) for name in used}

    def _decoded(self, name: str) -> NDArray[np.uint8]:
        frames = max(int(row["dataset_to_index"]) for row in self._rows)
        shape = self._image_shape(name)
        # Without a name in the file system it is gone when the last array is, however the process ends.
        with tempfile.TemporaryFile() as file:
            images = np.memmap(file, dtype=np.uint8, mode="w+", shape=(frames, *shape))
        try:
            if self.features[name]["dtype"] == "image":
                self._read_pngs(name, images)
            else:
                self._read_videos(name, images)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError("dataset.path", f"{name} of '{self.folder}' can't be read ({error})", AGAIN) from error
        return images

    def _read_pngs(self, name: str, images: NDArray[np.uint8]) -> None:
        for path in self._data_files():
            table = parquet.read_table(path, columns=[name, "index"])
            for index, cell in zip(table.column("index").to_pylist(), table.column(name).to_pylist(), strict=True):
                # A file may go on with episodes that are not kept.
                if index < len(images):
                    held = io.BytesIO(cell["bytes"]) if cell.get("bytes") else self.folder / cell["path"]
                    with Image.open(held) as image:
                        images[index] = np.asarray(image.convert("RGB"))

    def _read_videos(self, name: str, images: NDArray[np.uint8]) -> None:
        """Each file once, in its order; the frames of an episode begin at its `from_timestamp`."""
        by_file: dict[Path, list[Mapping[str, Any]]] = {}
        for row in self._rows:
            by_file.setdefault(self._film_file(name, row), []).append(row)
        for path, filmed in by_file.items():
            wanted: dict[int, int] = {}
            for row in filmed:
                first = self._first_frame(name, row)
                wanted |= {first + t: int(row["dataset_from_index"]) + t for t in range(int(row["length"]))}
            for number, frame in enumerate(film(path, images.shape[1:3])):
                if number in wanted:
                    images[wanted.pop(number)] = frame
                if not wanted:
                    break
            if wanted:
                raise ValueError(f"'{path}' ends {len(wanted)} frames too early")

    def _image_shape(self, name: str) -> tuple[int, ...]:
        """`(H, W, 3)`, whichever axis of the feature is the channels'."""
        shape, names = self.shape(name), self.features[name].get("names")
        axes = [str(each) for each in cast("list[Any]", names)] if isinstance(names, list) else []
        first = axes[0].startswith("channel") if axes else shape[0] == 3
        return (*shape[1:], shape[0]) if first else shape

    def _data_files(self) -> list[Path]:
        return sorted({self._data_file(row) for row in self._rows})

    def _data_file(self, row: Mapping[str, Any]) -> Path:
        named = self._paths["data"].format(chunk_index=int(row["data/chunk_index"]), file_index=int(row["data/file_index"]))
        return self.folder / named

    def _first_frame(self, name: str, row: Mapping[str, Any]) -> int:
        """Of an episode in its film."""
        # Rounded, as a time in floats may lie just before its frame.
        return round(float(row[f"videos/{name}/from_timestamp"]) * self.fps)

    def _film_file(self, name: str, row: Mapping[str, Any]) -> Path:
        chunk, file = row[f"videos/{name}/chunk_index"], row[f"videos/{name}/file_index"]
        return self.folder / str(self._paths["videos"]).format(video_key=name, chunk_index=chunk, file_index=file)

    def _named(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """The features of each key that a policy sees, and whether they are views of one key."""
        found: dict[str, list[tuple[int | None, str]]] = {}
        for name in self.features:
            match = _SEEN.fullmatch(name)
            # A camera of another name may show anything: `keys` has to say what.
            if match is None or (match["camera"] and match["camera"] not in _CAMERAS):
                continue
            key = _CAMERAS[match["camera"]] if match["camera"] else {"state": "states"}.get(match["key"], match["key"])
            found.setdefault(key, []).append((None if match["view"] is None else int(match["view"]), name))
        named = {
            k: (tuple(name for _, name in sorted(v, key=lambda each: each[0] or 0)), v[0][0] is not None) for k, v in found.items()
        }
        for key, features in self._config.keys.items():
            # One extra view has the axis of views, too, as environments show it.
            several = not isinstance(features, str) or key == _CAMERAS["extra"]
            named[key] = ((features,) if isinstance(features, str) else tuple(features), several)
            for name in named[key][0]:
                self.shape(name, f"keys.{key}")
        return named

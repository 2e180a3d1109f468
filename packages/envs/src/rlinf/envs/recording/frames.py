"""An episode in the words of a LeRobot dataset: its features, and what they are in each frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.envs.recording.episode import Episode

Feature = dict[str, Any]
Stats = dict[str, NDArray[Any]]

STATS = ("min", "max", "mean", "std", "count")
INTERVENED, POLICY_ACTION = "complementary_info.is_intervention", "complementary_info.policy_action"
_NAMES = {"states": "observation.state"}
_CAMERAS = {"main_images": "main", "wrist_images": "wrist", "extra_view_images": "extra"}
_IMAGE_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The frames of an episode by feature. Frame t holds what was seen, what was done then, and what came of it."""

    vectors: Mapping[str, NDArray[Any]]
    """`[T, *]`, numbers and vectors, without the indices that a dataset adds."""
    images: Mapping[str, NDArray[np.uint8]]
    """`[T, H, W, 3]`."""

    @classmethod
    def of(cls, episode: Episode) -> Frames:
        """The frames of an episode; the final observation has none, as no action follows it.

        Raises:
            ShapeError: an observation that is neither a vector nor images.
        """
        vectors: dict[str, NDArray[Any]] = {}
        images: dict[str, NDArray[np.uint8]] = {}
        for key, array in episode.observations.items():
            seen = array[:-1]
            if key in _CAMERAS:
                images |= _views(f"observation.images.{_CAMERAS[key]}", seen)
            elif seen.ndim <= 2:
                vectors[_NAMES.get(key, f"observation.{key}")] = seen
            else:
                problem = f"observation '{key}' of shape {list(array.shape[1:])} is neither a vector nor images"
                raise ShapeError("recording", problem, "Leave it out, or write NumPy files.")
        vectors["action"] = episode.actions.reshape(len(episode), -1) if episode.actions.ndim > 2 else episode.actions
        vectors["next.reward"] = episode.rewards
        vectors["next.done"] = episode.terminated | episode.truncated
        # An addition of ours: `done` alone does not tell a success that ended an episode from one that a limit cut.
        vectors["next.truncated"] = episode.truncated
        vectors["next.success"] = episode.success
        # As LeRobot calls what a person's intervention adds to a frame.
        if episode.intervened is not None:
            vectors[INTERVENED] = episode.intervened
        if episode.policy_actions is not None:
            vectors[POLICY_ACTION] = episode.policy_actions.reshape(len(episode), -1)
        return cls(vectors=vectors, images=images)

    def features(self, *, fps: int, use_videos: bool) -> dict[str, Feature]:
        """What `meta/info.json` says of each.

        Raises:
            ConfigError: a video of an odd size, which its pixel format doesn't have.
        """
        features: dict[str, Feature] = {}
        for key, images in self.images.items():
            height, width = images.shape[1:3]
            if use_videos and (height % 2 or width % 2):
                problem = f"{key} has {height} × {width} pixels, and a video needs even numbers"
                raise ConfigError("recording.use_videos", problem, "Set it to false to store images, or resize them.")
            features[key] = {
                "dtype": "video" if use_videos else "image",
                "shape": [height, width, 3],
                "names": ["height", "width", "channels"],
            }
            if use_videos:
                features[key]["info"] = _video_info(height, width, fps)
        for key, array in {**self.vectors, **_indices(1, fps)}.items():
            features[key] = {"dtype": str(array.dtype), "shape": list(array.shape[1:]) or [1], "names": None}
        return features

    def stats(self) -> dict[str, Stats]:
        """Least, greatest, mean, standard deviation and count of each; of images by channel, in [0, 1], of at most 100 frames."""
        stats = {key: _stats(array.reshape(len(array), -1).astype(np.float64)) for key, array in self.vectors.items()}
        for key, images in self.images.items():
            # Of fewer frames than samples, some are chosen more than once.
            chosen = np.unique(np.linspace(0, len(images) - 1, _IMAGE_SAMPLES).round().astype(np.int64))
            stats[key] = _channel_stats(images[chosen])
        return stats

    def table(self, *, episode: int, first: int, task: int, fps: int) -> dict[str, NDArray[Any]]:
        """The vectors with the indices that a dataset adds: of the frame, the episode and the task."""
        count = len(self.vectors["action"])
        indices = _indices(count, fps)
        indices["episode_index"] += episode
        indices["index"] += first
        indices["task_index"] += task
        return {**self.vectors, **indices}


def merged(stats: Stats, more: Stats) -> Stats:
    """Statistics of two sets together, by the parallel formula of Chan, Golub & LeVeque (1979)."""
    n, m = stats["count"], more["count"]
    mean = (stats["mean"] * n + more["mean"] * m) / (n + m)
    squares = (stats["std"] ** 2 + (stats["mean"] - mean) ** 2) * n + (more["std"] ** 2 + (more["mean"] - mean) ** 2) * m
    return {
        "min": np.minimum(stats["min"], more["min"]),
        "max": np.maximum(stats["max"], more["max"]),
        "mean": mean,
        "std": np.sqrt(squares / (n + m)),
        "count": n + m,
    }


def _stats(values: NDArray[np.float64]) -> Stats:
    least, greatest = values.min(axis=0), values.max(axis=0)
    return {
        "min": least,
        "max": greatest,
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)]),
    }


def _channel_stats(images: NDArray[np.uint8]) -> Stats:
    """From how often each level occurs, which is quicker than from the pixels, and as exact."""
    level = np.arange(256) / 255.0
    often = np.stack([np.bincount(images[..., channel].reshape(-1), minlength=256) for channel in range(3)])
    share = often / often.sum(axis=1, keepdims=True)
    mean = share @ level
    values = {
        "min": level[(often > 0).argmax(axis=1)],
        "max": level[255 - (often > 0)[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt((share * (level - mean[:, None]) ** 2).sum(axis=1)),
    }
    return {name: value.reshape(3, 1, 1) for name, value in values.items()} | {"count": np.array([len(images)])}


def _views(name: str, images: NDArray[Any]) -> dict[str, NDArray[np.uint8]]:
    if images.dtype != np.uint8 or images.ndim not in (4, 5) or images.shape[-1] != 3:
        raise ShapeError("recording", f"{name}: expected uint8 [T, H, W, 3] or [T, V, H, W, 3], found {list(images.shape)}")
    if images.ndim == 4:
        return {name: images}
    return {f"{name}_{view}": images[:, view] for view in range(images.shape[1])}


def _indices(count: int, fps: int) -> dict[str, NDArray[Any]]:
    frame = np.arange(count, dtype=np.int64)
    zeros = {key: np.zeros(count, np.int64) for key in ("episode_index", "task_index")}
    return {"timestamp": (frame / fps).astype(np.float32), "frame_index": frame, "index": frame.copy(), **zeros}


def _video_info(height: int, width: int, fps: int) -> dict[str, Any]:
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }

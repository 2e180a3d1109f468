"""A learned world model as an environment. Importing this imports no torch.

Ha and Schmidhuber, "World Models" (2018), arXiv:1803.10122: a policy can be trained inside of a learned model of its world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_importable, require_modules
from rlinf.envs.simulator_config import SimulatorConfig
from rlinf.envs.spaces import bounds, single_spaces

ACTION_BOUNDS = ("action_low", "action_high")
TEXTS = "task_descriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A model that is built by name, and its weights."""

    build: str
    """`module:attr`, called with `kwargs`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The arguments of `build`."""
    weights: str | None = None
    """A `.safetensors` file, or a `torch.save`d state dict, read without unpickling objects; for `load_state_dict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldModel(SimulatorConfig):
    """Imagined episodes: they start from real frames, a model predicts what follows, another judges it.

    - `model.build` gives an object with `predict(observation, action)`, or `predict(observation, action, noise)` if `noise_size` is
      set. `observation` is a dict by key, `[N, *]`; the answer is a dict with the keys that change, of the same shapes and types.
    - `reward.build` gives a function of `(observation, action, following)`; it returns a dict with `reward` `[N]`, and may add
      `success` and `terminated` `[N]` bool. Without `terminated`, success ends an episode.

    Both get torch tensors on `device`, or NumPy arrays with `library: numpy`. One row's prediction must not depend on another row.
    Videos show `main_images`, or a panel of numbers.
    """

    model: Part
    """Predicts."""
    reward: Part
    """Judges."""
    frames: str
    """An `.npz` file of F real initial frames, as `save_frames` writes it: by observation key `[F, *]`, `task_descriptions` `[F]`
    texts if there are any, `action_low` and `action_high` `[A]`. Initial state `i` of a reset is frame `i`."""
    horizon: int = 50
    """Steps after which an imagined episode is truncated, as errors add up; `max_episode_steps` takes its place where it is set."""
    hidden: tuple[str, ...] = ()
    """Keys of the frames that the model carries along, such as a latent state, but a policy doesn't see."""
    noise_size: int = 0
    """Standard normal numbers for each row and step, `[N, noise_size]`, that depend on the episode's seed and step alone."""
    library: Literal["torch", "numpy"] = "torch"
    """What model and reward compute with."""
    device: str = "cpu"
    """Where, for torch."""
    arrays: Literal["numpy", "torch"] = "numpy"
    """`torch`: observations stay on the device, and actions may come from there."""

    @property
    def episode_steps(self) -> int:
        return self.horizon

    def check(self, place: str) -> None:
        """Refuses missing files and modules; imports neither torch nor the model's module.

        Raises:
            MissingExtra: torch is not installed.
            ConfigError: a file or a module that isn't there, frames that are not enough, or a number that is too small.
        """
        require_modules("torch", place=place, extra="rlinf-envs[world-model]")
        for name, part in (("model", self.model), ("reward", self.reward)):
            module, colon, _ = part.build.partition(":")
            if not colon:
                raise ConfigError(f"{place}.{name}.build", f"expected module:attr, found '{part.build}'", "Check the path.")
            require_importable(module, place=f"{place}.{name}.build")
            if part.weights is not None and not Path(part.weights).is_file():
                raise ConfigError(f"{place}.{name}.weights", f"there is no file '{part.weights}'", "Check the path.")
        for name, least in (("horizon", 1), ("noise_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{place}.{name}", f"must be at least {least}, found {getattr(self, name)}")
        load_frames(self.frames, self.hidden, f"{place}.frames")


def save_frames(path: str | Path, env: VectorEnv[Any, Any, Any], count: int, *, seed: int = 0) -> None:
    """Draws initial frames from an environment and writes them for `WorldModel.frames`.

    Args:
        path: of the `.npz` file.
        env: any environment of this package; it is left reset.
        count: F; frame `i` is the initial state of the seed `seed + i`.
        seed: the first one.
    """
    rows: dict[str, list[NDArray[Any]]] = {}
    for first in range(seed, seed + count, env.num_envs):
        observation, _ = env.reset(seed=first)
        for key, array in observation.items():
            rows.setdefault(key, []).append(as_numpy(array).copy())
    # The last reset may draw more than are wanted.
    frames: dict[str, NDArray[Any]] = {key: np.concatenate(parts)[:count] for key, parts in rows.items()}
    low, high = bounds(single_spaces(env)[1], "env.action")
    np.savez_compressed(path, **frames, **dict(zip(ACTION_BOUNDS, (low, high), strict=True)))


def load_frames(path: str, hidden: tuple[str, ...], place: str) -> dict[str, NDArray[Any]]:
    """What `save_frames` wrote; nothing is unpickled.

    Raises:
        ConfigError: no such file, or one without frames, action bounds or a hidden key.
    """
    if not Path(path).is_file():
        raise ConfigError(place, f"there is no file '{path}'", "Write one with rlinf.envs.world_model.save_frames.")
    with np.load(path, allow_pickle=False) as archive:
        frames: dict[str, NDArray[Any]] = {key: archive[key] for key in archive.files}
    missing = sorted({*ACTION_BOUNDS, *hidden} - set(frames))
    if missing:
        raise ConfigError(place, f"'{path}' has no '{missing[0]}'", f"It has: {', '.join(sorted(frames))}.")
    counts = {key: len(array) for key, array in frames.items() if key not in ACTION_BOUNDS}
    # Beside texts and what is hidden there must be something that a policy sees.
    if not set(counts) - {TEXTS, *hidden} or len(set(counts.values())) != 1 or 0 in counts.values():
        raise ConfigError(place, f"expected the same number of frames for each key, found {counts}", "Write it with save_frames.")
    return frames

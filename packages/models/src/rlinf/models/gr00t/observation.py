"""What GR00T needs of an observation: views, a state and a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf.core.data import EnvSpec
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ConfigError
from rlinf.models.observations.cameras import CAMERAS
from rlinf.models.observations.images import fit_images
from rlinf.models.observations.reading import read_observation, read_states

STATES: Final = "states"
TASKS: Final = "task_descriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the observations of one environment."""

    cameras: tuple[str, ...]
    """Those keys of `CAMERAS` that the environment has."""
    views: int
    """V, images in all."""
    state_size: int
    """D; 0 without a state."""
    tells_task: bool
    """Whether observations have `task_descriptions`."""
    image_size: int
    """S, pixels each way."""
    crop: float
    """The share of each side that is kept."""

    @staticmethod
    def of(spec: EnvSpec, *, image_size: int, crop: float) -> Reader:
        """For an environment.

        Raises:
            ConfigError: it has neither a camera nor a state.
        """
        cameras = tuple(key for key in CAMERAS if key in spec.observation)
        state = spec.observation.get(STATES)
        if not cameras and state is None:
            found = f"expected {', '.join(CAMERAS)} or {STATES}, found {sorted(spec.observation)}"
            raise ConfigError("gr00t", found, "Choose an environment that a robot could be in.")
        shapes = [spec.observation[key].shape for key in cameras]
        return Reader(
            cameras=cameras,
            views=sum(shape[0] if len(shape) == 4 else 1 for shape in shapes),
            state_size=0 if state is None else state.shape[0],
            tells_task=TASKS in spec.observation,
            image_size=image_size,
            crop=crop,
        )

    def images(self, env_obs: Tree[Any]) -> Tensor | None:
        """`[B, V, S, S, 3]` uint8, cropped and resized; None without cameras."""
        if not self.cameras:
            return None
        views = [_as_views(self._leaf(env_obs, key)) for key in self.cameras]
        crop = None if self.crop == 1.0 else self.crop
        return torch.cat([fit_images(view, self.image_size, rounding="down", crop_scale=crop) for view in views], 1)

    def state(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, D]` float32, a copy."""
        if not self.state_size:
            # The model pads states to its own size, so that this one is all zeros there.
            return torch.zeros(self._rows(env_obs), 0)
        return read_states(env_obs, self.state_size, "gr00t", torch.empty(0))

    def tasks(self, env_obs: Tree[Any], default: str) -> list[str]:
        """What to do, for each row."""
        if not self.tells_task:
            return [default] * self._rows(env_obs)
        return [str(text) for text in self._leaf(env_obs, TASKS)]

    def _rows(self, env_obs: Tree[Any]) -> int:
        return len(self._leaf(env_obs, STATES if self.state_size else self.cameras[0]))

    def _leaf(self, env_obs: Tree[Any], key: str) -> Any:
        return read_observation(env_obs, key, "gr00t")


def _as_views(images: NDArray[np.uint8] | Tensor) -> NDArray[np.uint8] | Tensor:
    """`[B, V, H, W, 3]` of that or of `[B, H, W, 3]`."""
    return images if images.ndim == 5 else images[:, None]

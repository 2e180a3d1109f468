"""What OpenVLA-OFT reads of an observation: pictures of several cameras, proprioception, an instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlinf.core.data import EnvSpec
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.models.observations.cameras import CAMERAS
from rlinf.models.observations.reading import read_observation
from rlinf.models.openvla.vision import fit_pictures

STATES, TASKS = "states", "task_descriptions"
_PLACE = "openvla_oft(env_obs)"


def pictures(env_obs: Tree[Any], *, count: int, size: int, crop: bool) -> Tensor:
    """The first `count` pictures of all cameras, `[B, V, size, size, 3]` uint8.

    Args:
        env_obs: with `main_images` `[B, H, W, 3]`, and as many of `wrist_images` and `extra_view_images`, `[B, H, W, 3]` or
            `[B, V, H, W, 3]`, as are needed.
        count: V.
        size: pixels, each way.
        crop: whether the central 90 % of the area is blown up, as models need that were trained with random crops.

    Raises:
        ShapeError: there are fewer pictures.
    """
    read_observation(env_obs, CAMERAS[0], "openvla_oft")
    found = cast("Mapping[str, Any]", env_obs)
    views: list[Tensor] = []
    for key in CAMERAS:
        if key in found and len(views) < count:
            views += _views(found[key], key, size=size, crop=crop)
    if len(views) < count:
        problem = f"expected {count} pictures from {', '.join(CAMERAS)}, found {len(views)} among the keys {sorted(found)}"
        raise ShapeError(_PLACE, problem, "Lower num_images_in_input, or let the environment give more cameras.")
    # The last camera may have more views than are missing.
    return torch.stack(views[:count], dim=1)


def instructions(env_obs: Tree[Any]) -> list[str]:
    """The instruction of each sample.

    Raises:
        ShapeError: there are none.
    """
    return [str(text) for text in np.asarray(read_observation(env_obs, TASKS, "openvla_oft")).tolist()]


def state_size(spec: EnvSpec) -> int:
    """D, the size of the states of an environment.

    Raises:
        ShapeError: it has none.
    """
    if STATES not in spec.observation:
        problem = f"expected the key '{STATES}', found {sorted(spec.observation)}"
        raise ShapeError("openvla_oft.use_proprio", problem, "Set use_proprio: false.")
    return spec.observation[STATES].shape[0]


def _views(leaf: Any, key: str, *, size: int, crop: bool) -> list[Tensor]:
    images = leaf if isinstance(leaf, Tensor) else torch.tensor(np.asarray(leaf))
    if images.dim() not in (4, 5):
        raise ShapeError(f"{_PLACE}.{key}", f"expected [B, H, W, 3] or [B, V, H, W, 3], found {list(images.shape)}")
    fitted = fit_pictures(images, size, crop=crop)
    return [fitted] if fitted.dim() == 4 else list(fitted.unbind(1))

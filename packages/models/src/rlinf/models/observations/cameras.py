"""The cameras of an observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, ShapeError, did_you_mean
from rlinf.core.tree import Tree
from rlinf.models.observations.reading import read_observation

CAMERAS = ("main_images", "wrist_images", "extra_view_images")
"""The keys of images, in the order in which policies see them."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A key of the observation with one view, or with several."""

    key: str
    """One of `CAMERAS`."""
    shape: tuple[int, ...]
    """`[H, W, 3]`, or `[V, H, W, 3]`."""

    @property
    def views(self) -> int:
        """How many images there are."""
        return self.shape[0] if len(self.shape) == 4 else 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.shape[-3], self.shape[-2]


def cameras_of(spec: EnvSpec, keys: Sequence[str] | None, place: str) -> tuple[Camera, ...]:
    """The cameras that a policy looks through.

    Args:
        spec: of the environment.
        keys: which, some of `CAMERAS`; all that the environment has if None.
        place: the name of the policy, for messages.

    Raises:
        ConfigError: there is none, one is missing, or one has no images.
    """
    present = [key for key in CAMERAS if key in spec.observation]
    for key in keys if keys is not None else present:
        if key not in present:
            hint = did_you_mean(key, present, label="The environment has")
            raise ConfigError(f"{place}.cameras", f"no camera named '{key}'", hint)
    # In the order of CAMERAS, whatever that of the configuration is.
    chosen = present if keys is None else [key for key in present if key in keys]
    if not chosen:
        found = f"expected images under one of {', '.join(CAMERAS)}, found {sorted(spec.observation)}"
        raise ConfigError(place, found, "Choose an environment with cameras, or a policy of states.")
    cameras = tuple(Camera(key, tuple(spec.observation[key].shape)) for key in chosen)
    for camera in cameras:
        if len(camera.shape) not in (3, 4) or camera.shape[-1] != 3 or spec.observation[camera.key].dtype != "uint8":
            found = f"found {camera.shape} {spec.observation[camera.key].dtype}"
            raise ConfigError(f"{place}.{camera.key}", f"expected [H, W, 3] or [V, H, W, 3] uint8, {found}")
    return cameras


def read_images(env_obs: Tree[Any], camera: Camera, place: str, device: torch.device) -> Tensor:
    """A copy of a camera's images, `[B, *shape]` uint8.

    Args:
        env_obs: observations by key, NumPy or torch.
        camera: which.
        place: the name of the policy, for messages.
        device: where the copy is.

    Raises:
        ShapeError: the key is missing, or has something else.
    """
    images = torch.as_tensor(read_observation(env_obs, camera.key, place))
    if tuple(images.shape[1:]) != camera.shape or images.dtype != torch.uint8:
        found = f"expected [B, {', '.join(map(str, camera.shape))}] uint8, found {tuple(images.shape)} {images.dtype}"
        raise ShapeError(f"{place}(env_obs).{camera.key}", found, "Images are integers from 0 to 255, the colours last.")
    return images.to(device, copy=True)


def views_of(images: Tensor, camera: Camera) -> list[Tensor]:
    """Each view of a camera, `[*, H, W, 3]`, of its images `[*, *shape]`."""
    return [images] if len(camera.shape) == 3 else list(images.unbind(-4))

"""How policies read observations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import Tree
from rlinf.core.errors import NonFiniteError, ShapeError
from rlinf.models.observations.cameras import Camera


def read_observation(env_obs: Tree[Any], key: str, by: str) -> Any:
    """The leaf of an observation.

    Args:
        env_obs: observations by key.
        key: of the leaf.
        by: the name of the policy, for messages.

    Raises:
        ShapeError: it isn't there; the message lists what is.
    """
    if not isinstance(env_obs, Mapping):
        raise ShapeError(f"{by}(env_obs)", f"expected the key '{key}', found {type(env_obs).__name__}")
    leaves = cast("Mapping[str, Any]", env_obs)
    if key not in leaves:
        raise ShapeError(f"{by}(env_obs)", f"expected the key '{key}', found {sorted(leaves)}")
    return leaves[key]


def read_states(env_obs: Tree[Any], size: int, by: str, like: Tensor) -> Tensor:
    """A copy of the states, `[B, D]`, of the type and on the device of `like`.

    Args:
        env_obs: observations by key, NumPy or torch.
        size: D.
        by: the name of the policy, for messages.
        like: a weight of the policy.

    Raises:
        ShapeError: they aren't there, or have another size.
    """
    states = torch.as_tensor(read_observation(env_obs, "states", by))
    if states.dim() != 2 or states.shape[1] != size:
        remedy = "Use the environment that the policy was built for, or build it for this one."
        raise ShapeError(f"{by}(env_obs).states", f"expected [B, {size}], found {tuple(states.shape)}", remedy)
    return states.to(like, copy=True)


def refuse_not_finite(env_obs: Tree[Any], path: str = "env_obs") -> None:
    """Refuses observations with infinities or not-a-numbers.

    Args:
        env_obs: observations by key, NumPy or torch; integers and text pass unread.
        path: where they are, for messages.

    Raises:
        NonFiniteError: there is one; the message names its key and its row.
    """
    if isinstance(env_obs, Mapping):
        for key, leaf in cast("Mapping[str, Any]", env_obs).items():
            refuse_not_finite(leaf, f"{path}.{key}")
    elif not _finite(env_obs):
        # A second look, for a sum may overflow although all numbers are finite.
        found = np.argwhere(~np.isfinite(as_numpy(env_obs.double() if isinstance(env_obs, Tensor) else env_obs)))
        if len(found):
            value, rows = env_obs[tuple(found[0])], sorted({int(row) for row in found[:, 0]})
            problem = f"expected finite numbers, found {value} at {found[0].tolist()}, {len(found)} such in rows {rows[:8]}"
            raise NonFiniteError(
                f"predict_action_batch({path})", problem, "Look for its cause in the environment, or in a wrapper."
            )


def _finite(leaf: Any) -> bool:
    """Whether all of a leaf is finite, in one pass without memory; False also where a sum overflows.

    Infinities and not-a-numbers never leave a sum; NumPy is faster with a sum of squares.
    """
    if isinstance(leaf, Tensor):
        if not leaf.is_floating_point():
            return True
        return math.isfinite(leaf.sum().item())
    array: NDArray[Any] = np.asarray(leaf)
    if array.dtype.kind != "f":
        return True
    row = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.dot(row, row))


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

"""How small policies read observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.errors import ShapeError
from rlinf.core.tree import Tree


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
        raise ShapeError(f"{by}(env_obs).states", f"expected [B, {size}], found {tuple(states.shape)}")
    return states.to(like, copy=True)

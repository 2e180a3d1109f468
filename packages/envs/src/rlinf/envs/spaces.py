"""What the spaces of an environment say to a policy. Importing this does not import Gymnasium, as checking needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

Vector: TypeAlias = "VectorEnv[Any, Any, Any]"
"""A vector environment of this package."""


def describe(env: Vector) -> EnvSpec:
    """The description of one sub-environment of `env`.

    Args:
        env: a vector environment of this package: its observations are a `Dict` of boxes by embodied key, and its metadata hold
            `max_episode_steps`.

    Raises:
        ConfigError: a space that no policy of ours can serve.
    """
    from gymnasium.spaces import Dict

    space, action_space = single_spaces(env)
    if not is_a(space, Dict):
        raise ConfigError("env", f"observations must be a Dict of boxes by key, found {space}", "Wrap the environment.")
    limit = env.metadata.get("max_episode_steps")
    if limit is None:
        raise ConfigError("env.metadata['max_episode_steps']", "nothing is announced", "Wrap the environment in EpisodeStatistics.")
    return EnvSpec(
        observation={key: array_spec(box, f"env.observation.{key}") for key, box in space.items()},
        action=array_spec(action_space, "env.action"),
        max_episode_steps=int(limit),
        knows_success=bool(env.metadata.get("knows_success", True)),
    )


def single_spaces(env: Vector) -> tuple[Any, Any]:
    """The observation and the action space of one environment, without the types that Gymnasium knows only in part."""
    untyped = cast("Any", env)
    return untyped.single_observation_space, untyped.single_action_space


def array_spec(space: Any, place: str) -> ArraySpec:
    """A box or a discrete space as shape, type and bounds; the bounds are None where any is infinite, and for texts."""
    from rlinf.envs.text_array import TextArray

    if is_a(space, TextArray):
        return ArraySpec(shape=tuple(space.shape), dtype=str(space.dtype))
    low, high = bounds(space, place)
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    shape, dtype = tuple(space.shape), str(space.dtype)
    return ArraySpec(shape=shape, dtype=dtype, low=low if bounded else None, high=high if bounded else None)


def bounds(space: Any, place: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the greatest element of a `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary` space, each of the space's shape.

    Raises:
        ConfigError: another kind of space.
    """
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if is_a(space, Box):
        return space.low, space.high
    if is_a(space, Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if is_a(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if is_a(space, MultiBinary):
        shape, dtype = tuple(space.shape), str(space.dtype)
        return np.zeros(shape, dtype), np.ones(shape, dtype)
    problem = f"expected a Box, Discrete, MultiDiscrete or MultiBinary space, found {space}"
    raise ConfigError(place, problem, "Make it one of these by a wrapper, such as gymnasium.wrappers.TransformAction.")


def is_a(space: Any, kind: type[Any]) -> bool:
    """`isinstance`, without giving the space a partly known type."""
    return isinstance(space, kind)

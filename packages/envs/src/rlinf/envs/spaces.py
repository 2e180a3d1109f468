"""What a policy must know of an environment, read from its spaces."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.envs.texts import Texts


def describe(env: VectorEnv[Any, Any, Any]) -> EnvSpec:
    """The description of one sub-environment of `env`.

    Args:
        env: a vector environment of this package: its observations are a `Dict` of boxes by embodied key, and its metadata hold
            `max_episode_steps`.

    Raises:
        ConfigError: a space that no policy of ours can serve.
    """
    # Gymnasium's spaces are only partly typed, so they are read without types.
    untyped = cast("Any", env)
    space = untyped.single_observation_space
    if not is_a(space, gymnasium.spaces.Dict):
        raise ConfigError("env", f"observations must be a Dict of boxes by key, found {space}", "Wrap the environment.")
    limit = untyped.metadata.get("max_episode_steps")
    if limit is None:
        raise ConfigError("env.metadata['max_episode_steps']", "nothing is announced", "Wrap the environment in EpisodeStatistics.")
    return EnvSpec(
        observation={key: array_spec(box, f"env.observation.{key}") for key, box in space.items()},
        action=array_spec(untyped.single_action_space, "env.action"),
        max_episode_steps=int(limit),
        knows_success=bool(untyped.metadata.get("knows_success", True)),
    )


def array_spec(space: Any, place: str) -> ArraySpec:
    """A box or a discrete space as shape, type and bounds; the bounds are None where any is infinite, and for texts."""
    if is_a(space, Texts):
        return ArraySpec(shape=tuple(space.shape), dtype=str(space.dtype))
    low, high = bounds(space, place)
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    shape, dtype = tuple(space.shape), str(space.dtype)
    return ArraySpec(shape=shape, dtype=dtype, low=low if bounded else None, high=high if bounded else None)


def bounds(space: Any, place: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the greatest element of a `Box`, a `Discrete` or a `MultiDiscrete` space, each of the space's shape.

    Raises:
        ConfigError: another kind of space.
    """
    if is_a(space, gymnasium.spaces.Box):
        return space.low, space.high
    if is_a(space, gymnasium.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if is_a(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    raise ConfigError(place, f"expected a Box or a Discrete space, found {space}", "Wrap the environment.")


def is_a(space: Any, kind: type[Any]) -> bool:
    """`isinstance`, without giving the space a partly known type."""
    return isinstance(space, kind)

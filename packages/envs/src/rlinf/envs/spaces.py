"""What the spaces of an environment say to a policy, and a space of short texts."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError

Vector = VectorEnv[Any, Any, Any]
"""A vector environment of this package."""

_LETTERS = np.array(list(string.ascii_lowercase + " "))


def describe(env: VectorEnv[Any, Any, Any]) -> EnvSpec:
    """The description of one sub-environment of `env`.

    Args:
        env: a vector environment of this package: its observations are a `Dict` of boxes by embodied key, and its metadata hold
            `max_episode_steps`.

    Raises:
        ConfigError: a space that no policy of ours can serve.
    """
    space, action_space = single_spaces(env)
    if not is_a(space, gymnasium.spaces.Dict):
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


def single_spaces(env: VectorEnv[Any, Any, Any]) -> tuple[Any, Any]:
    """The observation and the action space of one environment, without the types that Gymnasium knows only in part."""
    untyped = cast("Any", env)
    return untyped.single_observation_space, untyped.single_action_space


def array_spec(space: Any, place: str) -> ArraySpec:
    """A box or a discrete space as shape, type and bounds; the bounds are None where any is infinite, and for texts."""
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
    if is_a(space, gymnasium.spaces.Box):
        return space.low, space.high
    if is_a(space, gymnasium.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if is_a(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if is_a(space, gymnasium.spaces.MultiBinary):
        shape, dtype = tuple(space.shape), str(space.dtype)
        return np.zeros(shape, dtype), np.ones(shape, dtype)
    problem = f"expected a Box, Discrete, MultiDiscrete or MultiBinary space, found {space}"
    raise ConfigError(place, problem, "Make it one of these by a wrapper, such as gymnasium.wrappers.TransformAction.")


def is_a(space: Any, kind: type[Any]) -> bool:
    """`isinstance`, without giving the space a partly known type."""
    return isinstance(space, kind)


class TextArray(Space[NDArray[np.str_]]):
    """Arrays of texts of at most `max_length` characters.

    Gymnasium's `Text` is one string; a batch of it is a tuple, without dtype and without indexing by an array. This is an array of
    NumPy's `<U` type, so that observations are arrays throughout. A single environment gives a plain `str`, which is what
    Gymnasium's `check_env` can compare.

    Args:
        max_length: characters of the longest text.
        shape: of the array; `()` for one text.
        seed: of `sample`.
    """

    def __init__(self, max_length: int, shape: tuple[int, ...] = (), seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(shape, np.dtype(f"<U{max_length}"), seed)

    @property
    def is_np_flattenable(self) -> bool:
        """A text is no vector of numbers."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[np.str_]:
        """Random lower-case letters, `shape`; `mask` and `probability` are for other spaces."""
        texts: NDArray[np.str_] = np.empty(self.shape or (), f"<U{self.max_length}")
        for at in np.ndindex(texts.shape):
            length = int(self.np_random.integers(1, self.max_length + 1))
            texts[at] = "".join(self.np_random.choice(_LETTERS, length))
        return texts

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text, or an array of texts, of this shape and no longer than allowed."""
        array = np.asarray(x)
        # NumPy keeps four bytes for each character.
        return array.dtype.kind == "U" and array.shape == self.shape and array.dtype.itemsize // 4 <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextArray) and (self.shape, self.max_length) == (other.shape, other.max_length)

    def __hash__(self) -> int:
        return hash((self.shape, self.max_length))

    def __repr__(self) -> str:
        return f"TextArray({self.max_length}, {self.shape})"


def _batch(space: TextArray, n: int = 1) -> TextArray:
    return TextArray(space.max_length, (n, *(space.shape or ())))


def _iterate(space: TextArray, items: Any) -> Iterator[Any]:
    return iter(items)


def _concatenate(space: TextArray, items: Iterable[Any], out: Any) -> Any:
    return np.stack([np.asarray(item, space.dtype) for item in items], axis=0, out=out)


def _create(space: TextArray, n: int | None = 1, fn: Any = np.zeros) -> Any:
    return fn(space.shape if n is None else (n, *(space.shape or ())), dtype=space.dtype)


# Gymnasium's own way to teach its vector environments a new space.
for _function, _method in cast(
    "Any", ((batch_space, _batch), (iterate, _iterate), (concatenate, _concatenate), (create_empty_array, _create))
):
    _function.register(TextArray, _method)

"""Recorded episodes as the rows that a replay buffer takes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import ArraySpec, EnvSpec, Trajectory
from rlinf.core.data.arrays import as_like, as_numpy, is_tensor
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError, ShapeError

TEXTS: Final = "task_descriptions"


def episode_rows(episode: OfflineEpisode, spec: EnvSpec, *, chunk: int = 1) -> Trajectory[NDArray[Any]]:
    """One row with the decisions of an episode: what was executed, what it earned, and what was seen around it.

    Of K steps in one decision the reward is their sum. Steps behind the end, which fill up the last decision, repeat the last
    action.
    A format that does not keep the final observation (LeRobot) tells what followed every step but the last: where the task ended
    there nothing is worth anything behind it, so that any observation does; where it was cut, that step is left out.

    Args:
        episode: of T ≥ 1 steps.
        spec: of the environment; its observations but for texts, and its actions, in its types.
        chunk: K.

    Returns:
        `[1, ⌈T/K⌉]` decisions with `observation` and `episode`.

    Raises:
        ConfigError: the only step was cut, and its final observation was not kept; or an observation is missing.
        ShapeError: observations or actions have another shape than the environment's.
    """
    place = f"episode {episode.number}"
    keys = [key for key in spec.observation if key != TEXTS]
    missing = [key for key in keys if key not in episode.observation]
    if missing:
        found = ", ".join(sorted(episode.observation))
        raise ConfigError(place, f"expected the observation '{missing[0]}', found {found}", "Record it in this environment.")
    steps, whole = len(episode), all(len(episode.observation[key]) > len(episode) for key in keys)
    terminated, truncated = np.array(episode.terminated, np.bool_), np.array(episode.truncated, np.bool_)
    if not whole and not terminated[-1]:
        steps -= 1
        if not steps:
            raise ConfigError(place, "has one step, and what followed it was not kept", "Leave it out, or record NumPy files.")
    # A row that stops without an end was cut there, and what follows has a value.
    truncated[steps - 1] |= not terminated[steps - 1]
    # The observation before each decision, and that behind the last one; the last of all stands in where there is none.
    seen = np.minimum(np.append(np.arange(0, steps, chunk), steps), len(episode) if whole else len(episode) - 1)
    taken = np.minimum(np.arange(-(-steps // chunk) * chunk), steps - 1)
    counted = (np.arange(len(taken)) < steps).reshape(-1, chunk)

    def chunks(column: NDArray[Any]) -> NDArray[Any]:
        return column[taken].reshape(-1, chunk, *column.shape[1:])

    reward = (chunks(np.asarray(episode.reward, np.float32)) * counted).sum(1, dtype=np.float32)
    observation = {key: _shaped(f"{place}.{key}", episode.observation[key], spec.observation[key])[seen][None] for key in keys}
    return Trajectory.of(
        context={},
        action=chunks(_shaped(f"{place}.action", _executed(episode), spec.action))[None],
        logprob=np.zeros((1, len(reward)), np.float32),
        reward=reward[None],
        terminated=np.logical_or.reduce(chunks(terminated) & counted, axis=1)[None],
        truncated=np.logical_or.reduce(chunks(truncated) & counted, axis=1)[None],
        episode=np.array([episode.number]),
        observation=observation,
    )


def within_bounds(action: Any, spec: ArraySpec) -> Any:
    """Actions `[*, A]` as an environment executes them: clipped to its bounds, if it has any; NumPy or torch, as they come."""
    low, high = (None if bound is None else as_like(action, as_numpy(bound)) for bound in (spec.low, spec.high))
    if low is None and high is None:
        return action
    clipped = action.clip(low, high)
    return clipped.to(action.dtype) if is_tensor(action) else clipped.astype(action.dtype, copy=False)


def _executed(episode: OfflineEpisode) -> NDArray[Any]:
    """`[T, *]`: the policy's actions, but for those that an expert replaced."""
    action = np.asarray(episode.action)
    if episode.policy_action is None or episode.intervened is None:
        return action
    acted = np.asarray(episode.intervened, np.bool_).reshape(-1, *[1] * (action.ndim - 1))
    return np.where(acted, action, np.asarray(episode.policy_action))


def _shaped(place: str, array: Any, of: ArraySpec) -> NDArray[Any]:
    """The array in the type of the environment."""
    found = np.asarray(array)
    if found.shape[1:] != tuple(of.shape):
        raise ShapeError(place, f"expected the shape {list(of.shape)}, found {list(found.shape[1:])}")
    return found.astype(of.dtype, copy=False)

"""Action chunks: several control steps from one decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.arrays import as_numpy, is_tensor
from rlinf.core.errors import ContractError, NonFiniteError, ShapeError


@dataclass(frozen=True, slots=True)
class MaskedActions:
    """Actions for a step that only some environments take; how the rest of an action chunk passes by an episode that has ended.

    A wrapper hands it on. `EpisodeStatistics` of rlinf.envs sees to it that nothing observable changes in the environments that
    stand still; a vector environment below it that has `metadata["masked_actions"]` true gets it too and steps only the others.
    """

    actions: Any
    """`[N, *]`, within the bounds everywhere."""
    active: NDArray[np.bool_]
    """`[N]`, which environments take the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStep:
    """What a chunk of K actions did to N environments."""

    observations: Any
    """By key `[N, *]`, after the last action that was executed; the final one where the episode ended."""
    rewards: NDArray[np.float32]
    """`[N, K]`, the reward of each action; 0 where it was not executed."""
    terminated: NDArray[np.bool_]
    """`[N, K]`, the task itself ended with this action."""
    truncated: NDArray[np.bool_]
    """`[N, K]`, a limit cut the episode at this action."""
    executed: NDArray[np.bool_]
    """`[N, K]`, which actions were executed: the first ones, up to the end of the episode; `executed.sum(1)` says how many."""
    infos: dict[str, Any]
    """As after a step: `success` in the state reached, `episode` with `_episode`, true where the episode ended in this chunk. Where
    somebody can act in place of the policy, `intervene_flag` `[N, K]` and `intervene_action` `[N, K, *]`, what was executed."""

    @property
    def done(self) -> NDArray[np.bool_]:
        """`[N]`, which episodes have ended and must be reset."""
        return np.asarray((self.terminated | self.truncated).any(axis=1), np.bool_)


def chunk_step(env: Any, actions: Any) -> ChunkStep:
    """Executes a chunk of actions, one control step after the other, in each environment until its episode ends.

    It is the same as stepping by hand and stopping at the end: an environment whose episode has ended takes no further step, the
    rest of its chunk is not executed, and its final observation is kept. Nothing is reset.

    Args:
        env: a `gymnasium.vector.VectorEnv` without autoreset whose `step` takes `MaskedActions`, as all of rlinf.envs do, with no
            episode that has ended.
        actions: `[N, K, *]`; all within the bounds, those that will not be executed too.

    Raises:
        ShapeError: the actions have no axis K, or K is 0.
        ContractError: `infos` holds no `episode` or no `_episode`.
        NonFiniteError: a reward is infinite or not a number.
        EnvMisuse: what `env.step` refuses.
    """
    chunk: Any = actions if is_tensor(actions) else np.asarray(actions)
    rank = len(env.action_space.shape) + 1
    if chunk.ndim != rank or chunk.shape[0] != env.num_envs or chunk.shape[1] == 0:
        problem = f"expected actions of shape [{env.num_envs}, K, …] with {rank} axes, found {list(chunk.shape)}"
        raise ShapeError("chunk_step", problem, "Give each environment at least one action: actions[:, None].")
    size = chunk.shape[1]
    rewards = np.zeros((env.num_envs, size), np.float32)
    terminated, truncated, executed = (np.zeros((env.num_envs, size), np.bool_) for _ in range(3))
    intervened = np.zeros((env.num_envs, size), np.bool_)
    done: Any = None
    active = np.ones(env.num_envs, np.bool_)
    ended = np.zeros(env.num_envs, np.bool_)
    observations, infos = None, dict[str, Any]()
    for k in range(size):
        step = chunk[:, k] if active.all() else MaskedActions(chunk[:, k], active)
        observations, reward, over, cut, infos = env.step(step)
        if infos.get("episode") is None or infos.get("_episode") is None:
            raise ContractError("env.step", "infos holds no statistics of episodes", "Wrap the environment in EpisodeStatistics.")
        executed[:, k] = active
        if "intervene_flag" in infos:
            intervened[:, k] = as_numpy(infos["intervene_flag"]) & active
            done = np.array(as_numpy(chunk)) if done is None else done
            done[intervened[:, k], k] = as_numpy(infos["intervene_action"])[intervened[:, k]]
        over, cut = as_numpy(over), as_numpy(cut)
        rewards[:, k] = np.where(active, as_numpy(reward), 0.0)
        terminated[:, k], truncated[:, k] = over & active, cut & active
        # An environment that stands still may repeat what it said at its end, which counts once.
        ended |= as_numpy(infos["_episode"]) & active
        active = active & ~(over | cut)
        if not active.any():
            break
    _expect_finite(rewards)
    infos = {**infos, "_episode": ended}
    if done is not None:
        infos |= {"intervene_flag": intervened, "intervene_action": done}
    return ChunkStep(
        observations=observations, rewards=rewards, terminated=terminated, truncated=truncated, executed=executed, infos=infos
    )


def _expect_finite(rewards: NDArray[np.float32]) -> None:
    """Refuses rewards `[N, K]` that would spoil everything that they are summed or compared with."""
    finite = np.isfinite(rewards)
    if not finite.all():
        env, step = np.argwhere(~finite)[0]
        problem = f"the reward of environment {env} is {rewards[env, step]}"
        raise NonFiniteError("env.step", problem, "Look for its cause in the environment.")

"""Action chunks: several control steps from one decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy, is_tensor
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
    seen: NDArray[np.bool_] | None = None
    """`[N]`, whose images after the step somebody looks at; None: all. Elsewhere they may be those of an earlier step, while
    everything else is of this one. It is for environments that say that they take it, see `ChunkExecution`."""


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
    execution = ChunkExecution(env)
    execution.advance(actions)
    return execution.finish()


class ChunkExecution:
    """A chunk whose actions are given in parts, such as the first ones while somebody still decides on the later ones.

    Only the observation after the last action of a part is looked at, so the images of the others need not be drawn: their steps
    are not `seen`. That is done only where both hold:

    - The vector environment has `metadata["masked_actions"]` and `metadata["unseen_steps"]` true. One of its environments that
      stands still in a step that is seen, and whose images are older than its state, is drawn in that step.
    - Each wrapper around it has `passes_unseen_steps = True` in its own class: what it does and returns depends on the images of
      no earlier step.

    Args:
        env: as for `chunk_step`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._leaves_out = _takes_unseen_steps(env)
        self._unseen = False
        self._active = np.ones(env.num_envs, np.bool_)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._parts: list[_Part] = []
        self._observations: Any = None
        self._infos: dict[str, Any] = {}

    def advance(self, actions: Any) -> None:
        """Executes the next actions `[N, K, *]`, any K above 0, where the episode goes on; see `chunk_step`."""
        chunk: Any = actions if is_tensor(actions) else np.asarray(actions)
        count, rank = self._env.num_envs, len(self._env.action_space.shape) + 1
        if chunk.ndim != rank or chunk.shape[0] != count or chunk.shape[1] == 0:
            problem = f"expected actions of shape [{count}, K, …] with {rank} axes, found {list(chunk.shape)}"
            raise ShapeError("chunk_step", problem, "Give each environment at least one action: actions[:, None].")
        part = _Part(chunk)
        self._parts.append(part)
        last = chunk.shape[1] - 1
        for k in range(last + 1):
            if not self._active.any():
                break
            self._unseen = self._leaves_out and k < last
            self._step(part, k)
        if self._unseen:
            self._see(chunk[:, last])

    def _see(self, actions: Any) -> None:
        """Shows how the episodes ended that all did before the last action, by a step that nobody takes."""
        nobody = np.zeros(self._env.num_envs, np.bool_)
        self._observations, self._unseen = self._env.step(MaskedActions(actions, nobody))[0], False

    def _step(self, part: _Part, k: int) -> None:
        active = self._active
        seen = np.zeros(len(active), np.bool_) if self._unseen else None
        step = part.chunk[:, k] if seen is None and active.all() else MaskedActions(part.chunk[:, k], active, seen)
        self._observations, reward, over, cut, infos = self._env.step(step)
        if infos.get("episode") is None or infos.get("_episode") is None:
            raise ContractError("env.step", "infos holds no statistics of episodes", "Wrap the environment in EpisodeStatistics.")
        part.executed[:, k] = active
        if "intervene_flag" in infos:
            part.note_others(k, as_numpy(infos["intervene_flag"]) & active, as_numpy(infos["intervene_action"]))
        over, cut = as_numpy(over), as_numpy(cut)
        part.rewards[:, k] = np.where(active, as_numpy(reward), 0.0)
        part.terminated[:, k], part.truncated[:, k] = over & active, cut & active
        # An environment that stands still may repeat what it said at its end, which counts once.
        self._ended |= as_numpy(infos["_episode"]) & active
        self._active, self._infos = active & ~(over | cut), infos

    def finish(self) -> ChunkStep:
        """What all parts did, of which there is one at least."""

        def whole(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in self._parts], axis=1)

        rewards = whole("rewards")
        _expect_finite(rewards)
        infos = {**self._infos, "_episode": self._ended}
        if any(part.done is not None for part in self._parts):
            done = [as_numpy(part.chunk) if part.done is None else part.done for part in self._parts]
            infos |= {"intervene_flag": whole("intervened"), "intervene_action": np.concatenate(done, axis=1)}
        return ChunkStep(
            observations=self._observations,
            rewards=rewards,
            terminated=whole("terminated"),
            truncated=whole("truncated"),
            executed=whole("executed"),
            infos=infos,
        )


def _takes_unseen_steps(env: Any) -> bool:
    """Whether the environment may leave images out, and all wrappers around it let it."""
    bare: Any = getattr(env, "unwrapped", None)
    if bare is None:
        # Nobody could tell a wrapper from what is inside.
        return False
    layer: Any = env
    while layer is not bare:
        # Of the class itself: a wrapper that says nothing shows the attributes and the metadata of what is inside.
        own = cast("Mapping[str, Any]", vars(layer.__class__))
        if not own.get("passes_unseen_steps", False):
            return False
        layer = layer.env
    return all(bare.metadata.get(key, False) for key in ("masked_actions", "unseen_steps"))


class _Part:
    """What some actions of a chunk did, each array `[N, K]`."""

    def __init__(self, chunk: Any) -> None:
        shape = chunk.shape[:2]
        self.chunk = chunk
        self.rewards = np.zeros(shape, np.float32)
        self.terminated, self.truncated, self.executed, self.intervened = (np.zeros(shape, np.bool_) for _ in range(4))
        self.done: Any = None
        """`[N, K, *]`, what was executed where somebody else could act; None where nobody could."""

    def note_others(self, k: int, flags: NDArray[np.bool_], actions: NDArray[Any]) -> None:
        """Takes over the actions of others, `[N, *]`, where they acted."""
        self.intervened[:, k] = flags
        # A copy: the chunk itself stays what the policy decided.
        self.done = np.array(as_numpy(self.chunk)) if self.done is None else self.done
        self.done[flags, k] = actions[flags]


def _expect_finite(rewards: NDArray[np.float32]) -> None:
    """Refuses rewards `[N, K]` that would spoil everything that they are summed or compared with."""
    finite = np.isfinite(rewards)
    if not finite.all():
        env, step = np.argwhere(~finite)[0]
        problem = f"the reward of environment {env} is {rewards[env, step]}"
        raise NonFiniteError("env.step", problem, "Look for its cause in the environment.")

"""The contract of vector environments, as an examiner.

The examined object is a `gymnasium.vector.VectorEnv` without autoreset; nothing of Gymnasium is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.tree import tree_leaves

_EPISODE = ("success_once", "success_at_end", "return", "episode_len")


@dataclass(frozen=True, slots=True)
class _Moment:
    """What one call said, copied."""

    observation: dict[str, Any]
    reward: Any
    terminated: Any
    truncated: Any

    def row(self, index: int) -> bytes:
        parts = [array[index] for array in self.observation.values()]
        parts += [flags[index] for flags in (self.reward, self.terminated, self.truncated) if flags is not None]
        return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@dataclass(kw_only=True)
class EnvContract:
    """Examines environments that a factory builds.

        EnvContract(lambda: make_my_env(num_envs=3)).run()

    The factory must give at least two sub-environments, and a new object on each call. Two are built; the second is closed
    at the end of `run`, the first by the last check.

    Attributes:
        factory: builds the vector environment.
        steps: how many steps a compared sequence has.
        seed: from which the seeds of the sub-environments follow.
    """

    factory: Callable[[], Any]
    steps: int = 12
    seed: int = 7
    _envs: list[Any] = field(default_factory=list[Any], init=False, repr=False)

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """Runs all checks and returns what was checked, one sentence each.

        Args:
            report: called with each sentence as soon as its check has passed.

        Raises:
            ContractError: the first check that fails; it says what was expected and what was found.
        """
        try:
            for sentence, check in CHECKS.items():
                check(self)
                if report is not None:
                    report(sentence)
        finally:
            for env in self._envs:
                env.close()
            self._envs.clear()
        return list(CHECKS)

    @property
    def env(self) -> Any:
        """The environment under examination."""
        return self._built(0)

    @property
    def other(self) -> Any:
        """Another environment from the same factory."""
        return self._built(1)

    def seeds(self, first: int) -> list[int]:
        """One seed for each sub-environment, all different."""
        return [self.seed + 1000 * first + 17 * i for i in range(self.env.num_envs)]

    def actions(self, count: int, seed: int = 0) -> list[Any]:
        """Random actions `[N, *]` within the bounds, the same for the same seed."""
        space = self.env.action_space
        space.seed(self.seed + seed)
        return [space.sample() for _ in range(count)]

    def reset(self, env: Any, seeds: Sequence[int], mask: Any = None) -> _Moment:
        """Resets and copies the answer."""
        options = {} if mask is None else {"reset_mask": mask}
        observation, _ = env.reset(seed=list(seeds), options=options)
        return _Moment(_copied(observation), None, None, None)

    def step(self, env: Any, action: Any) -> _Moment:
        """Steps and copies the answer."""
        observation, reward, terminated, truncated, _ = env.step(action)
        return _Moment(_copied(observation), np.array(reward), np.array(terminated), np.array(truncated))

    def replay(self, env: Any, seeds: Sequence[int], actions: Sequence[Any]) -> list[_Moment]:
        """Resets all and steps through `actions`, or up to the first end of an episode."""
        moments = [self.reset(env, seeds)]
        for action in actions:
            moments.append(self.step(env, action))
            if (moments[-1].terminated | moments[-1].truncated).any():
                break
        return moments

    def _built(self, index: int) -> Any:
        while len(self._envs) <= index:
            self._envs.append(self.factory())
        return self._envs[index]


def _announces(suite: EnvContract) -> None:
    env = suite.env
    mode = getattr(env.metadata.get("autoreset_mode"), "name", None)
    _expect(mode == "DISABLED", "env.metadata['autoreset_mode']", f"expected AutoresetMode.DISABLED, found {mode}")
    _expect(env.num_envs >= 2, "env.num_envs", f"the contract needs at least 2, found {env.num_envs}")
    keys = getattr(env.single_observation_space, "spaces", None)
    _expect(bool(keys), "env.single_observation_space", "expected a Dict of observation keys such as 'states'")


def _refuses_early_step(suite: EnvContract) -> None:
    action = suite.actions(1)[0]
    _expect_error(lambda: suite.other.step(action), "env.step", "an error before the first reset")


def _spaces(suite: EnvContract) -> None:
    env = suite.env
    moments = suite.replay(env, suite.seeds(0), suite.actions(2))
    for moment in moments:
        _expect(set(moment.observation) == set(env.observation_space.spaces), "env.step", "other keys than the space announces")
        for key, array in moment.observation.items():
            space = env.observation_space.spaces[key]
            found, wanted = (array.dtype, array.shape), (space.dtype, space.shape)
            _expect(found == wanted, f"observation['{key}']", f"announced {wanted}, found {found}")
    for name, dtype in (("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_)):
        array = getattr(moments[1], name)
        found = f"{array.dtype} {list(array.shape)}"
        _expect(array.dtype == dtype and array.shape == (env.num_envs,), name, f"expected {dtype.__name__} [N], found {found}")


def _pure_reset(suite: EnvContract) -> None:
    env, actions = suite.env, suite.actions(suite.steps)
    first = suite.replay(env, suite.seeds(1), actions)
    suite.replay(env, suite.seeds(2), suite.actions(suite.steps, seed=1))
    _expect_same(first, suite.replay(env, suite.seeds(1), actions), "env.reset", "a reset depends on what happened before it")


def _seeds_matter(suite: EnvContract) -> None:
    first, second = (suite.reset(suite.env, suite.seeds(k)) for k in (1, 3))
    _expect(any(first.row(i) != second.row(i) for i in range(suite.env.num_envs)), "env.reset", "another seed gives the same state")
    one = suite.env.reset(seed=suite.seed)[0]
    several = suite.env.reset(seed=[suite.seed + i for i in range(suite.env.num_envs)])[0]
    expected = _copied(one)
    for key, array in _copied(several).items():
        _expect(np.array_equal(array, expected[key]), f"observation['{key}']", "seed=s is not the same as seed=[s, s+1, …]")


def _partial_reset(suite: EnvContract) -> None:
    env, other, actions = suite.env, suite.other, suite.actions(3)
    mask = np.zeros(env.num_envs, np.bool_)
    mask[0] = True
    before = suite.replay(env, suite.seeds(1), actions[:2])[-1]
    after = suite.reset(env, suite.seeds(4), mask)
    suite.replay(other, suite.seeds(1), actions[:2])
    for index in range(1, env.num_envs):
        same = all(np.array_equal(after.observation[key][index], before.observation[key][index]) for key in before.observation)
        _expect(same, "env.reset", f"a reset of environment 0 changed the observation of environment {index}")
    touched, untouched = suite.step(env, actions[2]), suite.step(other, actions[2])
    for index in range(1, env.num_envs):
        _expect(touched.row(index) == untouched.row(index), "env.reset", f"a reset of environment 0 moved environment {index}")
    fresh = suite.reset(other, suite.seeds(4))
    _expect(after.row(0) == fresh.row(0), "env.reset", "a partial reset gives another state than a full one of the same seed")


def _instances(suite: EnvContract) -> None:
    actions = suite.actions(suite.steps)
    first = suite.replay(suite.env, suite.seeds(1), actions)
    second = [suite.reset(suite.other, suite.seeds(1))]
    suite.reset(suite.env, suite.seeds(5))
    for action, noise in zip(actions[: len(first) - 1], suite.actions(suite.steps, seed=2), strict=False):
        second.append(suite.step(suite.other, action))
        suite.reset(suite.env, suite.seeds(5))
        suite.step(suite.env, noise)
    _expect_same(first, second, "env", "two environments of one factory share state")


def _kept_observation(suite: EnvContract) -> None:
    observation, _ = suite.env.reset(seed=suite.seeds(1))
    before = _copied(observation)
    suite.env.step(suite.actions(1)[0])
    for key, array in before.items():
        _expect(
            np.array_equal(array, as_numpy(observation[key])), f"observation['{key}']", "a step changed an observation given before"
        )


def _ends(suite: EnvContract) -> None:
    env = suite.env
    done, step = _play_to_end(suite, env)
    flags = step[2] | step[3]
    episode, mask = step[4].get("episode", {}), step[4].get("_episode", ())
    _expect(np.array_equal(mask, flags), "infos['_episode']", f"expected {flags}, found {mask}")
    _expect(set(_EPISODE) <= set(episode), "infos['episode']", f"expected {_EPISODE}, found {sorted(episode)}")
    for key in _EPISODE:
        _expect(len(episode[key]) == env.num_envs, f"infos['episode']['{key}']", "expected one value for each environment")
    _expect(step[4]["success"].dtype == np.bool_, "infos['success']", "expected bool [N]")
    index = int(np.flatnonzero(done)[0])
    last = _copied(step[0])
    action = suite.actions(1)[0]
    _expect_error(lambda: env.step(action), "env.step", f"an error, as the episode of environment {index} ended and was not reset")
    fresh = suite.reset(env, suite.seeds(6), done)
    for key, array in last.items():
        if not np.array_equal(array[index], fresh.observation[key][index]):
            break
    else:
        raise ContractError("env.step", "the observation after the last step is not the final one but that of the next episode")
    env.step(action)


def _play_to_end(suite: EnvContract, env: Any) -> tuple[Any, Any]:
    suite.reset(env, suite.seeds(1))
    returns, lengths = np.zeros(env.num_envs), 0
    for action in suite.actions(int(env.metadata.get("max_episode_steps", 10_000))):
        step = env.step(action)
        returns += step[1]
        lengths += 1
        done = step[2] | step[3]
        if done.any():
            index = int(np.flatnonzero(done)[0])
            episode = step[4].get("episode", {})
            if "return" in episode:
                found, wanted = (episode["episode_len"][index], episode["return"][index]), (lengths, returns[index])
                _expect(
                    np.allclose(found, wanted, rtol=1e-4, atol=1e-4), "infos['episode']", f"length, return: {wanted}, found {found}"
                )
            return done, step
    raise ContractError("env.step", f"no episode ended within {lengths} steps", "Announce env.metadata['max_episode_steps'].")


def _bad_actions(suite: EnvContract) -> None:
    env = suite.env
    suite.reset(env, suite.seeds(1))
    action = suite.actions(1)[0]
    _expect_error(lambda: env.step(action[:-1]), "env.step", "an error for actions of a wrong shape")
    if np.issubdtype(action.dtype, np.floating):
        nan, far = action.copy(), action.copy()
        nan.reshape(-1)[0] = np.nan
        far.reshape(-1)[-1] = np.asarray(env.action_space.high).reshape(-1)[-1] + 1.0
        _expect_error(lambda: env.step(nan), "env.step", "an error for an action that is not a number")
        _expect_error(lambda: env.step(far), "env.step", "an error for an action outside the bounds")
    else:
        _expect_error(lambda: env.step(action + 10_000), "env.step", "an error for an action outside the bounds")
    env.step(action)


def _closing(suite: EnvContract) -> None:
    env, action = suite.env, suite.actions(1)[0]
    env.close()
    env.close()
    _expect_error(lambda: env.step(action), "env.step", "an error after close")
    _expect_error(lambda: env.reset(seed=1), "env.reset", "an error after close")


CHECKS: Final[dict[str, Callable[[EnvContract], None]]] = {
    "it announces no autoreset and observations by key": _announces,
    "a step before the first reset is an error": _refuses_early_step,
    "observations, rewards and flags are of the announced shapes and types": _spaces,
    "a reset depends on the seed alone, and a replayed sequence is the same to the bit": _pure_reset,
    "another seed gives another state": _seeds_matter,
    "a partial reset touches no other environment": _partial_reset,
    "two instances share no state": _instances,
    "an observation that was given stays as it is": _kept_observation,
    "an episode ends with its final observation and statistics, and is not reset by a step": _ends,
    "a wrong action is an error": _bad_actions,
    "closing twice is fine, and a closed environment refuses calls": _closing,
}


def _copied(observation: Any) -> dict[str, Any]:
    return {key: np.array(as_numpy(leaf)) for key, leaf in tree_leaves(observation)}


def _expect(condition: bool, place: str, problem: str) -> None:
    if not condition:
        raise ContractError(place, problem)


def _expect_same(first: Sequence[_Moment], second: Sequence[_Moment], place: str, problem: str) -> None:
    for step, (a, b) in enumerate(zip(first, second, strict=True)):
        for index in range(len(next(iter(a.observation.values())))):
            _expect(a.row(index) == b.row(index), place, f"{problem}: environment {index} differs at step {step}")


def _expect_error(call: Callable[[], object], place: str, wanted: str) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        text = str(error)
        _expect(bool(text.strip()), place, f"expected {wanted} that says something, found an empty {type(error).__name__}")
        return
    raise ContractError(place, f"expected {wanted}, found none")

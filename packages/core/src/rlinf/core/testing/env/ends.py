"""Lines of the environment contract about how episodes end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.testing.checks import expect
from rlinf.core.testing.env.moments import Episode, expect_error
from rlinf.core.testing.env.subject import EnvSubject

_STATISTICS: Final = ("success_once", "success_at_end", "return", "episode_len")
_SHORT: Final = 100
"""Steps up to which a second end is awaited, to see that statistics start anew."""


def statistics(subject: EnvSubject) -> None:
    """`infos` tells of an ended episode what its steps told, and there is no step after the end."""
    env, limit = subject.env, _limit(subject)
    subject.reset(env, subject.seeds(1))
    tally = _Tally(env.num_envs)
    for number, action in zip(range(2 * limit), _choices(subject, "first"), strict=False):
        answer = env.step(action)
        done = tally.add(answer)
        if done.any():
            index = int(np.flatnonzero(done)[0])
            wanted = f"an error, as the episode of environment {index} ended and was not reset"
            expect_error(lambda action=action: env.step(action), "env.step", wanted)
            if number >= limit or limit > _SHORT:
                return
            subject.reset(env, subject.seeds(6), done)
            tally.start(done)
    if not tally.ends:
        raise _endless(limit)


def flags(subject: EnvSubject) -> None:
    """`truncated` where the step limit cut, `terminated` where the task ended."""
    limit = _limit(subject)
    episodes = [*played(subject, "first"), *played(subject, "second")]
    for number, episode in enumerate(episodes):
        what = f"the episode of environment {number % subject.env.num_envs} ended after {episode.length} of {limit} steps"
        if episode.length >= limit:
            expect(episode.truncated, "truncated", f"{what}: expected truncated, found only terminated")
        else:
            remedy = "If the simulator itself cuts episodes, declare metadata['waived']['early_truncation']."
            expect(not episode.truncated, "truncated", f"{what}: expected terminated alone, found truncated", remedy)
    cut = [episode.terminated for episode in episodes if episode.length >= limit]
    remedy = "If the task does end there, announce a longer limit."
    expect(not cut or not all(cut), "terminated", "every episode that reached the step limit is terminated, too", remedy)


def final_observation(subject: EnvSubject) -> None:
    """What the last step shows is the end of the episode, not the start of the next one.

    A reset inside `step` shows a state that the actions don't reach, so it gives itself away in one of three ways: two episodes
    from one seed go different ways, yet end in the same state; or all episodes end where they began; or the same actions lead to
    another end.
    """
    first, second = played(subject, "first"), played(subject, "second")
    problem = "the observation after the last step is not the final one but that of the next episode"
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        expect(not _meet(one, other), "env.step", f"{problem}: environment {index} ends in the same state whatever the actions")
    back = [episode.observations[0] == episode.observations[-1] != episode.observations[-2] for episode in (*first, *second)]
    expect(not all(back), "env.step", f"{problem}: every episode ends exactly where it began")
    if "pure_reset" not in subject.waived:
        for index, (one, again) in enumerate(zip(first, _play(subject, "first"), strict=True)):
            same = one.answers == again.answers
            expect(same, "env.step", f"the episode of environment {index}, played again from the same seed, goes otherwise")


def played(subject: EnvSubject, name: str) -> list[Episode]:
    """The first episode of each environment from `seeds(1)`.

    `first` is played with the examined `act` if it has one, `second` with the same swayed by chance; both with random actions
    without.
    """
    if name not in subject.episodes:
        subject.episodes[name] = _play(subject, name)
    return subject.episodes[name]


def _play(subject: EnvSubject, name: str) -> list[Episode]:
    env, limit = subject.env, _limit(subject)
    moment = subject.reset(env, subject.seeds(1))
    episodes = [Episode([moment.seen(i)], [moment.row(i)]) for i in range(env.num_envs)]
    running = np.ones(env.num_envs, np.bool_)
    for _, action in zip(range(limit), _choices(subject, name), strict=False):
        moment = subject.step(env, action)
        for index in np.flatnonzero(running).tolist():
            episodes[index].observations.append(moment.seen(index))
            episodes[index].answers.append(moment.row(index))
            episodes[index].terminated = bool(moment.terminated[index])
            episodes[index].truncated = bool(moment.truncated[index])
        running &= ~moment.done
        if not running.any():
            return episodes
        # No step is allowed after an end. What a new episode does is not looked at.
        if moment.done.any():
            subject.reset(env, subject.seeds(6), moment.done)
    raise _endless(limit)


def _meet(one: Episode, other: Episode) -> bool:
    """Whether two episodes parted, stayed apart up to their ends, and ended in the same state nevertheless."""
    apart = [a != b for a, b in zip(one.observations[:-1], other.observations[:-1], strict=False)]
    parted = True in apart and all(apart[apart.index(True) :]) and sum(apart) > 1
    return parted and one.moves and other.moves and one.observations[-1] == other.observations[-1]


class _Tally:
    """Counts along what `infos["episode"]` should say."""

    def __init__(self, num_envs: int) -> None:
        self.ends = 0
        self._length = np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs)
        self._success = np.zeros(num_envs, np.bool_)

    def start(self, mask: Any) -> None:
        for array in (self._length, self._return, self._success):
            array[mask] = 0

    def add(self, answer: tuple[Any, ...]) -> Any:
        """Counts a step, compares where an episode ended, and says where."""
        _, reward, terminated, truncated, infos = answer
        done = np.array(as_numpy(terminated) | as_numpy(truncated))
        success = as_numpy(infos["success"])
        self._length += 1
        self._return += as_numpy(reward)
        self._success |= success
        mask = as_numpy(infos.get("_episode", ()))
        expect(np.array_equal(mask, done), "infos['_episode']", f"expected {done}, found {mask}")
        if done.any():
            self.ends += 1
            wanted = (self._success, success, self._return, self._length)
            self._compare(infos.get("episode", {}), dict(zip(_STATISTICS, wanted, strict=True)), done)
        return done

    def _compare(self, found: Any, wanted: dict[str, Any], done: Any) -> None:
        expect(set(wanted) <= set(found), "infos['episode']", f"expected {_STATISTICS}, found {sorted(found)}")
        for key, values in wanted.items():
            place = f"infos['episode']['{key}']"
            given = as_numpy(found[key])
            expect(given.shape == done.shape, place, f"expected one value for each environment, found {list(given.shape)}")
            agree = np.allclose(given[done], values[done], rtol=1e-4, atol=1e-4, equal_nan=True)
            expect(agree, place, f"the steps tell {values[done].tolist()}, found {given[done].tolist()}")


def _choices(subject: EnvSubject, name: str) -> Iterator[Any]:
    """Endless actions for the episode of that name."""
    space = subject.env.action_space
    space.seed(subject.seed + (name == "second"))
    while True:
        action = space.sample()
        if subject.act is not None:
            wanted = as_numpy(subject.act(subject.env))
            action = wanted if name == "first" else _swayed(wanted, action)
        yield action


def _swayed(action: np.ndarray[Any, Any], chance: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An action that chance has a part in: a quarter of it, or of every fourth environment where actions can't be mixed."""
    if np.issubdtype(action.dtype, np.floating):
        return (0.75 * action + 0.25 * chance).astype(action.dtype)
    return np.where(np.arange(len(action)) % 4 == 0, chance, action)


def _limit(subject: EnvSubject) -> int:
    announced = subject.env.metadata.get("max_episode_steps")
    expect(announced is not None, "env.metadata['max_episode_steps']", "expected the number of steps of the longest episode")
    return int(announced)


def _endless(limit: int) -> ContractError:
    return ContractError("env.step", f"an episode didn't end within {limit} steps, as metadata['max_episode_steps'] announces")

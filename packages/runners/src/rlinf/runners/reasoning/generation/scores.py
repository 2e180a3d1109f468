"""`Scorer`: asks the run's reward about one group; rewards that wait are asked about many groups at a time.

texts and answers ──► reward(completions, answers)           a number each
samples           ──► reward.score_samples(samples), async   a number each, or parts by name with weights
"""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, SupportsFloat, cast

from rlinf.core.errors import DeadlineExceeded, NonFiniteError, RLinfError
from rlinf.core.rewards import RewardSample, SampleReward, Scored, WeightedScores
from rlinf.runners.reasoning.schema import RewardConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScores:
    """What a reward says of a group."""

    values: tuple[float, ...]
    """One for each response."""
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, "tuple[float, ...]"])
    """Each part before its weight, by name; empty for a reward of one part."""

    def of(self, row: int) -> Mapping[str, float]:
        """What each part says of one response."""
        return {name: values[row] for name, values in self.parts.items()}


class Scorer:
    """Asks one reward, and refuses what is no number for each response.

    Args:
        config: the section `reward`.
        place: the worker, for messages.
    """

    def __init__(self, config: RewardConfig, place: str) -> None:
        self._config, self._place = config, place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places: asyncio.Semaphore | None = None

    def begin(
        self, texts: Sequence[str], answer: str, where: str, samples: Callable[[], Sequence[RewardSample]]
    ) -> Future[GroupScores]:
        """Has a group scored; done at once unless the reward waits.

        Args:
            texts: the responses.
            answer: what is right.
            where: what a person finds the problem by.
            samples: the responses with all that is known of them; only made for rewards that look at them.

        Raises:
            RLinfError: there is not a number for each response; the message names reward, problem and response.
        """
        reward = self._config.reward
        if not isinstance(reward, SampleReward):
            said = self._bounded(lambda: reward(texts, [answer] * len(texts)), where)
            return _settled(self._checked(said, texts, where))
        given = samples()
        found = cast("Scored | Awaitable[Scored]", self._bounded(lambda: reward.score_samples(given), where))
        if not inspect.isawaitable(found):
            return _settled(self._checked(found, texts, where))
        return asyncio.run_coroutine_threadsafe(self._awaited(found, texts, where), self._running())

    def result(self, scores: Future[GroupScores], waiting: int) -> GroupScores:
        """The scores of a group.

        Args:
            scores: what `begin` returned.
            waiting: how many groups may come before it.

        Raises:
            DeadlineExceeded: a reward that waits blocks the loop on which all groups are scored.
        """
        # Each group has a deadline of its own on that loop, and all wait for a place among others.
        limit = self._config.group_timeout_s * (1 + waiting)
        if not wait([scores], timeout=limit).done:
            problem = f"reward '{self._config.reward_type}' let nothing else go on for {limit:g} s"
            raise DeadlineExceeded(self._place, problem, "Let it await what it waits for; `asyncio.to_thread` calls what blocks.")
        return scores.result()

    async def _awaited(self, found: Awaitable[Scored], texts: Sequence[str], where: str) -> GroupScores:
        assert self._places is not None  # made with the loop that runs this
        async with self._places:
            try:
                async with asyncio.timeout(self._config.group_timeout_s):
                    said = await found
            except TimeoutError as error:
                raise self._silent(where) from error
        return self._checked(said, texts, where)

    def _bounded(self, ask: Callable[[], object], where: str) -> object:
        """What a reward that blocks says, within its deadline.

        A worker with a process of its own calls it in the main thread, where signals of the reward's own work, as those of
        `math_verify` do. Workers that share a process take turns in other threads.
        """
        if threading.current_thread() is threading.main_thread():
            try:
                return _interrupted(ask, self._config.group_timeout_s)
            except _OverdueError as error:
                raise self._silent(where) from error
        said: Future[object] = Future()

        def run() -> None:
            try:
                said.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                said.set_exception(error)

        threading.Thread(target=run, daemon=True, name=f"reward of {self._place}").start()
        if not wait([said], timeout=self._config.group_timeout_s).done:
            raise self._silent(where)
        # Not `result`, whose own frames would stand between the reward's and ours.
        if (error := said.exception()) is not None:
            raise error
        return said.result()

    def _silent(self, where: str) -> DeadlineExceeded:
        limit = self._config.group_timeout_s
        problem = f"reward '{self._config.reward_type}' said nothing of {where} within reward.group_timeout_s = {limit:g} s"
        return DeadlineExceeded(self._place, problem)

    def _running(self) -> asyncio.AbstractEventLoop:
        """A loop in a thread of its own, which goes on while this worker waits for the next group."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._places = asyncio.Semaphore(self._config.max_concurrent)
            threading.Thread(target=self._loop.run_forever, daemon=True, name=f"rewards of {self._place}").start()
        return self._loop

    def _checked(self, said: object, texts: Sequence[str], where: str) -> GroupScores:
        name = f"reward '{self._config.reward_type}'"
        if not isinstance(said, Mapping):
            return GroupScores(values=self._numbers(said, texts, name, where))
        given = cast("Mapping[str, WeightedScores]", said)
        parts = {part: self._numbers(each.values, texts, f"part '{part}' of {name}", where) for part, each in given.items()}
        # fsum: the order of the parts, which a mapping decides, must not change a score.
        values = [math.fsum(given[part].weight * numbers[row] for part, numbers in parts.items()) for row in range(len(texts))]
        return GroupScores(values=tuple(values), parts=parts)

    def _numbers(self, scores: object, texts: Sequence[str], name: str, where: str) -> tuple[float, ...]:
        """The scores, if there is a finite number for each response."""
        wanted = f"expected one score of {name} for each of {len(texts)} responses to {where}"
        if isinstance(scores, str) or not isinstance(scores, Sized) or not isinstance(scores, Iterable):
            raise RLinfError(self._place, f"{wanted}, found {scores!r:.80}", "Return a list as long as the list of completions.")
        if len(scores) != len(texts):
            raise RLinfError(self._place, f"{wanted}, found {len(scores)}", "Return a list as long as the list of completions.")

        def no_number(score: object) -> RLinfError:
            return RLinfError(self._place, f"{wanted}, found {score!r:.80}", "Return numbers.")

        given: list[float] = []
        for score, text in zip(cast("Iterable[Any]", scores), texts, strict=True):
            if not isinstance(score, SupportsFloat):
                raise no_number(score)
            try:
                given.append(float(score))
            # Tensors say that they are numbers; one of several elements is none, nor is one without memory.
            except (TypeError, ValueError, RuntimeError) as error:
                raise no_number(score) from error
            if not math.isfinite(given[-1]):
                found = f"expected a finite score of {name} for {where}, found {score}; the response is {text[:80]!r}"
                raise NonFiniteError(self._place, found, "Mend the reward: no number can be trained on.")
        return tuple(given)


class _OverdueError(BaseException):
    """A reward has taken too long; no `Exception`, which a reward that tries again would pass over."""


def _interrupted(ask: Callable[[], object], seconds: float) -> object:
    """What a function returns that is called in the main thread and ends after so many seconds.

    A signal ends what waits or computes in Python. Code in C that never looks for signals is not ended: the deadline of the phase
    (`runner.timeout_s`) then ends the run. Not SIGALRM, as that is what rewards bound themselves with.

    Raises:
        _OverdueError: it had to be ended.
    """
    lock, main, returned = threading.Lock(), threading.main_thread().ident or 0, False

    def remind() -> None:
        # Under the lock, so that no signal arrives when the former handler, which may end the process, is there again.
        with lock:
            if not returned:
                signal.pthread_kill(main, signal.SIGUSR2)

    def end(number: int, frame: FrameType | None) -> None:
        raise _OverdueError

    watch = threading.Timer(seconds, remind)
    watch.daemon = True
    before = signal.signal(signal.SIGUSR2, end)
    try:
        watch.start()
        try:
            return ask()
        finally:
            with lock:
                returned = True
    finally:
        watch.cancel()
        # None where the handler was not set by Python, and can't be set again.
        signal.signal(signal.SIGUSR2, signal.SIG_DFL if before is None else before)


def _settled(scores: GroupScores) -> Future[GroupScores]:
    future: Future[GroupScores] = Future()
    future.set_result(scores)
    return future

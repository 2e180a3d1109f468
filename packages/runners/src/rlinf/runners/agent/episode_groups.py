"""The episodes of a group, which may be suspended when their job ends, and gone on with in a later one.

              job 1 ends ──► training, new weights ──► job 2 begins
turn   ──────────┤ cut, its tokens are kept            ├── goes on behind them, read again by the new weights ──►
tool   ──────────┼─────────────────────────────────────┼──► its answer is read
clock  ──────────┤ stands still                        ├─────────────────────────────────────────────────────────►
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from rlinf.core.agents import Episode
from rlinf.core.data import Completion
from rlinf.core.language.generation import Generator as TextGenerator


class EpisodeGroup:
    """Episodes that are played at the same time, and aborted or suspended together.

    Args:
        generator: writes their turns.
        places: of episodes that are played at a time, over all groups; None for any number.
    """

    def __init__(self, generator: TextGenerator, places: asyncio.Semaphore | None = None) -> None:
        self._generator, self._places = generator, places
        self._going, self._still = asyncio.Event(), asyncio.Event()
        self._going.set()
        self._requests: set[str] = set()
        self._ended: asyncio.Future[list[Episode]] | None = None
        self.aborted = False
        """Whether a caller has ended it."""
        self.members: list[PlayedEpisode] = []
        """In the order in which they were begun."""

    @property
    def suspended(self) -> bool:
        """Whether nothing of it is written until it is resumed."""
        return not self._going.is_set()

    @property
    def tokens(self) -> int:
        """How many its episodes have written."""
        return sum(member.tokens for member in self.members)

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that wrote one of them; None if there is no token."""
        return min((member.oldest for member in self.members if member.oldest is not None), default=None)

    def member(self) -> PlayedEpisode:
        """One more episode, which somebody else plays."""
        self.members.append(PlayedEpisode(self, self._places))
        return self.members[-1]

    def begin(self, play: Callable[[PlayedEpisode], Coroutine[Any, Any, Episode]]) -> None:
        """Plays one more episode, as soon as there is a place for it."""
        member = self.member()

        async def placed() -> Episode:
            await member.admitted()
            try:
                return await play(member)
            finally:
                member.leave()

        member.task = asyncio.ensure_future(placed())

    async def ended(self) -> tuple[Episode, ...]:
        """The episodes, when all have ended."""
        return tuple(await asyncio.gather(*(member.task for member in self.members if member.task is not None)))

    async def played(self) -> tuple[Episode, ...]:
        """The episodes, as soon as all have ended; () as soon as the group is suspended and none of its requests is under way."""
        if self._ended is None:
            self._ended = asyncio.gather(*(member.task for member in self.members if member.task is not None))
            # Nobody asks how episodes ended that were dropped, and asyncio would complain.
            self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        still = asyncio.ensure_future(self._still.wait())
        try:
            # `wait` cancels nothing when it ends: a later job waits for the same episodes.
            await asyncio.wait([self._ended, still], return_when=asyncio.FIRST_COMPLETED)
        finally:
            still.cancel()
        return tuple(self._ended.result()) if self._ended.done() else ()

    async def going(self) -> None:
        """Returns when the group is not suspended."""
        await self._going.wait()

    def abort(self) -> None:
        """Ends the requests that are under way; none is begun afterwards."""
        self.aborted = True
        self._generator.abort(self._requests)

    def suspend(self) -> None:
        """Cuts the requests that are under way, and has them and all others wait until `resume`. Tools go on."""
        # First: a request that the abort below ends asks whether its group is suspended.
        self._going.clear()
        for member in self.members:
            member.suspend()
        self._generator.abort(self._requests)
        self._look()

    def resume(self) -> None:
        """Goes on: requests that were cut go on from what they had written."""
        self._still.clear()
        self._going.set()
        for member in self.members:
            member.resume()

    def cancel(self) -> list[asyncio.Task[Episode]]:
        """Ends its episodes, wherever they are; returns those of them that have yet to notice."""
        playing = [member.task for member in self.members if member.task is not None and not member.task.done()]
        for task in playing:
            task.cancel()
        return playing

    @contextmanager
    def request(self, name: str) -> Generator[None]:
        """A request of this name is under way inside."""
        self._requests.add(name)
        try:
            yield
        finally:
            self._requests.discard(name)
            self._look()

    def _look(self) -> None:
        if self.suspended and not self._requests:
            self._still.set()


class PlayedEpisode:
    """An episode of a group, and what it gives up while that is suspended: its place among those that are played, and its clock.

    Args:
        group: the group.
        places: see `EpisodeGroup`.
    """

    def __init__(self, group: EpisodeGroup, places: asyncio.Semaphore | None) -> None:
        self.group = group
        self.task: asyncio.Task[Episode] | None = None
        """Plays it; None where the caller does."""
        self._places, self._placed, self._entering = places, False, asyncio.Lock()
        self._deadline: asyncio.Timeout | None = None
        self._left_s: float | None = None
        self._written: dict[str, Completion[Any]] = {}

    @property
    def tokens(self) -> int:
        """How many it has written; those of a failed attempt don't count."""
        ended = self._result
        return len(ended) if ended is not None else sum(map(len, self._written.values()))

    @property
    def oldest(self) -> int | None:
        """The oldest weight version that wrote one of them; None if there is no token."""
        ended = self._result
        versions = [each.oldest for each in self._written.values()] if ended is None else [ended.oldest]
        return min((version for version in versions if version is not None), default=None)

    async def admitted(self) -> None:
        """Returns when its group is going, and it has a place."""
        # Several agents of one episode may ask at a time, for the one place that they share.
        async with self._entering:
            while not self._placed:
                await self.group.going()
                if self._places is not None:
                    await self._places.acquire()
                self._placed = True
                # The group may have been suspended while this waited for a place.
                if self.group.suspended:
                    self.leave()

    def leave(self) -> None:
        """Gives its place back, if it has one."""
        if self._placed and self._places is not None:
            self._places.release()
        self._placed = False

    def attempt(self, deadline: asyncio.Timeout) -> None:
        """An attempt begins, which must end by then; nothing of it is written yet."""
        self._deadline, self._written = deadline, {}
        if self.group.suspended:
            self._stop_clock()

    def attempted(self) -> None:
        """The attempt is over."""
        self._deadline = self._left_s = None

    def suspend(self) -> None:
        """Its group is suspended."""
        self.leave()
        self._stop_clock()

    def resume(self) -> None:
        """Its group goes on."""
        if self._deadline is not None and self._left_s is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._left_s)
        self._left_s = None

    def was_cut(self, request: str, completion: Completion[Any]) -> bool:
        """Takes over what a request has written; whether it shall go on from there, because its group is suspended."""
        self._written[request] = completion
        return completion.finish == "abort" and self.group.suspended

    def forget(self, request: str) -> None:
        """A request came to nothing."""
        self._written.pop(request, None)

    @property
    def _result(self) -> Episode | None:
        task = self.task
        return task.result() if task is not None and task.done() and not task.cancelled() and not task.exception() else None

    def _stop_clock(self) -> None:
        end = None if self._deadline is None else self._deadline.when()
        # One that has expired is about to end its attempt, and can't be moved any more.
        if self._deadline is not None and end is not None and not self._deadline.expired():
            self._left_s = end - asyncio.get_running_loop().time()
            self._deadline.reschedule(None)

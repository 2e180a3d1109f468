"""What an episode gives up while its group is suspended, and what it has written: place, clock, tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from loop_clock import later

from rlinf.core.data import Completion
from rlinf.runners.agent.episode_groups import EpisodeGroup


class NoGenerator:
    def abort(self, requests: object) -> None: ...


def group(places: asyncio.Semaphore | None = None) -> EpisodeGroup:
    generator: Any = NoGenerator()
    return EpisodeGroup(generator, places)


def wrote(*versions: int) -> Completion[Any]:
    tokens = np.zeros(len(versions), dtype=np.int64)
    return Completion(tokens=tokens, logprob=tokens.astype(float), version=np.array(versions), finish="abort")


def test_an_attempt_that_begins_in_a_suspended_group_has_all_its_time_later() -> None:
    """A tool goes on, may fail, and so may end an attempt, while nothing is written."""

    async def play() -> None:
        one = group()
        member = one.member()
        one.suspend()
        async with asyncio.timeout(0.05) as deadline:
            member.attempt(deadline)
            await asyncio.sleep(0.15)
            assert not deadline.expired()
            one.resume()
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        asyncio.run(play())


def test_a_clock_that_stood_still_runs_on_from_where_it_stood() -> None:
    left: list[float] = []

    async def play() -> None:
        one = group()
        member = one.member()
        passed = later()
        async with asyncio.timeout(100.0) as deadline:
            member.attempt(deadline)
            await passed(40.0)
            one.suspend()
            await passed(200.0)
            begun = asyncio.get_running_loop().time()
            one.resume()
            left.append((deadline.when() or 0.0) - begun)
            await passed(200.0)
            await asyncio.sleep(200.0)

    with pytest.raises(TimeoutError):
        asyncio.run(play())
    assert 0.0 < left[0] < 61.0, "of 100 seconds 40 had passed at the stop, and what the calls took"


def test_agents_of_one_episode_share_its_place() -> None:
    async def play() -> None:
        places = asyncio.Semaphore(1)
        member = group(places).member()
        await asyncio.gather(member.admitted(), member.admitted())
        assert places.locked()
        member.leave()
        member.leave()
        assert places._value == 1, "given back once"

    asyncio.run(asyncio.wait_for(play(), 60))


def test_who_gets_a_place_while_suspended_gives_it_back() -> None:
    async def play() -> None:
        places = asyncio.Semaphore(0)
        one = group(places)
        waiting = asyncio.ensure_future(one.member().admitted())
        await asyncio.sleep(0)
        one.suspend()
        places.release()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (waiting.done(), places._value) == (False, 1)
        one.resume()
        await waiting
        assert places.locked()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_what_counts_as_written_is_that_of_the_attempt_under_way() -> None:
    async def play() -> None:
        member = group().member()
        async with asyncio.timeout(60) as deadline:
            member.attempt(deadline)
            member.was_cut("a", wrote(4, 5))
            member.was_cut("b", wrote(2, 3, 3))
            assert (member.tokens, member.oldest) == (5, 2)
            member.was_cut("a", wrote(4, 5, 6))
            assert (member.tokens, member.oldest) == (6, 2), "a request that went on counts once"
            member.forget("b")
            assert (member.tokens, member.oldest) == (3, 4)
            member.attempt(deadline)
            assert (member.tokens, member.oldest) == (0, None)

    asyncio.run(play())

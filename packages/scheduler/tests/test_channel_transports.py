"""Channels over sockets, without Ray: the transports of a driver and of two workers in one process."""

import asyncio
import gc
import queue
import time
from typing import Any

import pytest
from channel_runs import Run, beside, through
from waiting import until

from rlinf.core.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    DeadlineExceeded,
    EndOfStream,
    RLinfError,
)
from rlinf.scheduler import Channel
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport

SOON = 0.1


def test_items_keep_their_order_and_their_keys(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    for i in range(50):
        here.put(i)
        here.put(-i, key=("k", 1))
        assert here.qsize() == i + 1
    assert [there.get() for _ in range(50)] == list(range(50))
    assert [there.get(("k", 1)) for _ in range(50)] == [-i for i in range(50)]
    assert (there.empty(), there.empty("unused"), there.full()) == (True, True, False)
    with pytest.raises(DeadlineExceeded, match=r"channel 'c', key 'default': b\[0\] waited 0.1 s for an item in vain"):
        there.get(timeout=SOON)


def test_what_is_there_at_once_and_what_is_not(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    for error in (ChannelEmpty, asyncio.QueueEmpty, queue.Empty):
        with pytest.raises(error, match="no item"):
            here.get_nowait()
    for i in range(20):
        here.put_nowait(i)
        assert here.get_nowait() == i
    here.put("x")
    assert there.get(timeout=60.0) == "x"


def test_room(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    for i, site in enumerate([{}, {"near": "a"}, {"near": "b"}]):
        channel = run.create(f"c{i}", maxsize=2, **site)
        here, there = through(a, channel), through(b, channel)
        here.put(0)
        assert not here.full()
        here.put(1)
        assert there.full()
        for error in (ChannelFull, asyncio.QueueFull, queue.Full):
            with pytest.raises(error, match="no room"):
                here.put_nowait(2)
        with pytest.raises(DeadlineExceeded, match="for room"):
            here.put(2, timeout=SOON)
        here.put(0, key="other")
        waiting = beside(lambda here=here: here.put(2))
        time.sleep(SOON)
        assert there.get() == 0
        waiting()
        assert there.get_batch(100) == [1, 2]


def test_asynchronous_puts_and_gets_keep_the_order(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    handles = [there.get(async_op=True) for _ in range(4)]
    assert not handles[0].done()
    with pytest.raises(DeadlineExceeded):
        handles[0].wait(SOON)
    last = beside(there.get)
    time.sleep(SOON)
    puts = [here.put(i, async_op=True) if i % 2 else here.put(i) for i in range(5)]
    assert [handle.wait() for handle in handles] == [0, 1, 2, 3]
    assert handles[0].wait() == 0
    assert last() == 4
    assert all(put is None or put.wait() is None for put in puts)
    batch = there.get_batch(3, async_op=True)
    for i in range(3):
        here.put(i, weight=1)
    assert batch.wait() == [0, 1, 2]


def test_order_of_a_mix_of_puts_that_wait_for_room(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    channel = run.create("c", maxsize=2, near="b")
    here, there = through(a, channel), through(b, channel)
    puts = [here.put(i, async_op=True) for i in range(6)]
    sync = beside(lambda: here.put(6))
    time.sleep(SOON)
    assert not puts[2].done()
    assert [there.get() for _ in range(7)] == list(range(7))
    sync()
    for put in puts:
        put.wait()


def test_a_cancelled_or_dropped_get_loses_nothing(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    waiting, arrived, dropped = (there.get(async_op=True) for _ in range(3))
    assert waiting.cancel()
    with pytest.raises(RLinfError, match="cancelled"):
        waiting.wait()
    for i in range(3):
        here.put(i)
    until(dropped.done)
    del dropped
    assert arrived.cancel()
    assert [there.get() for _ in range(3)] == [0, 1, 2]
    handle = there.get(async_op=True)
    del handle
    here.put(3)
    assert here.get() == 3
    done = there.get(async_op=True)
    here.put(4)
    assert done.wait() == 4
    assert not done.cancel()
    gc.collect()
    for _ in range(50):
        for i in range(3):
            here.put(i)
        given_up = [there.get(async_op=True) for _ in range(2)]
        assert given_up.pop().cancel()
        del given_up
        assert [there.get() for _ in range(3)] == [0, 1, 2]
    assert here.empty()


def test_a_cancelled_put(run: Run, a: SocketTransport) -> None:
    for i, near in enumerate([None, "a"]):
        channel = through(a, run.create(f"c{i}", maxsize=1, near=near))
        channel.put(0)
        put = channel.put(1, async_op=True)
        assert put.cancel()
        assert channel.get() == 0
        done = channel.put(2, async_op=True)
        done.wait()
        assert not done.cancel()
        assert (channel.get(), channel.empty()) == (2, True)


def test_asyncio(pair: tuple[Channel, Channel]) -> None:
    here, there = pair

    async def main() -> list[Any]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(there.get(async_op=True).async_wait(), SOON)
        gets = asyncio.gather(*[there.get(async_op=True) for _ in range(20)])
        await asyncio.sleep(0.01)
        for i in range(20):
            await here.put(i, async_op=True)
        found = await gets
        here.put("more")
        await asyncio.to_thread(here.close)
        return [*found, *[item async for item in there]]

    assert asyncio.run(main()) == [*range(20), "more"]


def test_closing(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    readers = [beside(lambda end=end: list(end)) for end in pair]
    handle = there.get("k", async_op=True)
    for i in range(10):
        here.put(i)
    here.close()
    there.close()
    assert sorted(readers[0]() + readers[1]()) == list(range(10))
    for end in pair:
        for get in (end.get, end.get_nowait, lambda end=end: end.get_batch(3), lambda end=end: end.get("new")):
            with pytest.raises(EndOfStream, match=r"closed by a\[0\]"):
                get()
        with pytest.raises(ChannelClosed, match=r"can't get room: closed by a\[0\]"):
            end.put(0)
        with pytest.raises(ChannelClosed, match="closed by"):
            end.put(0, async_op=True).wait()
    with pytest.raises(EOFError):
        handle.wait()


def test_closing_a_full_channel(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    channel = run.create("c", maxsize=2, near="b")
    here, there = through(a, channel), through(b, channel)
    puts = [here.put(i, async_op=True) for i in range(4)]
    sync = beside(lambda: here.put(4))
    until(there.full)
    time.sleep(SOON)
    there.close()
    with pytest.raises(ChannelClosed, match=r"closed by b\[0\]"):
        sync()
    outcomes = [put.wait() for put in puts[:2]]
    assert outcomes == [None, None]
    with pytest.raises(ChannelClosed):
        puts[2].wait()
    assert there.get_batch(100) == [0, 1]
    with pytest.raises(EndOfStream):
        there.get_batch(100)


def test_items_on_their_way_come_before_the_end(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    """Four threads put while another process closes: what a put took comes, what it refused does not."""
    channel = run.create("c")
    here, there = through(a, channel), through(b, channel)
    put: list[int] = []

    def fill(start: int) -> None:
        for i in range(start, start + 100_000):
            try:
                here.put(i)
            except ChannelClosed:
                return
            put.append(i)

    writers = [beside(lambda start=start: fill(start)) for start in range(0, 400_000, 100_000)]
    reader = beside(lambda: list(through(run.driver, channel)))
    until(lambda: len(put) > 500)
    there.close()
    for writer in writers:
        writer()
    assert sorted(reader()) == sorted(put)


def test_the_end_waits_for_what_others_have_not_acknowledged(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    channel = run.create("c")
    here, there = through(a, channel), through(b, channel)
    here.put(1)
    held = here.get(async_op=True)
    until(held.done)
    here.close()
    with pytest.raises(EndOfStream):
        here.get()  # by who holds it
    waiting = beside(there.get)
    time.sleep(SOON)
    del held
    assert waiting() == 1
    with pytest.raises(EndOfStream):
        there.get()

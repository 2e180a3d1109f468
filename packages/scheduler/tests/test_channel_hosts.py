"""Channels over sockets, without Ray: where they are, what they cost, and those who come late or do not answer."""

import gc
import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from channel_runs import Run, beside, through
from waiting import until

from rlinf.core.errors import (
    ChannelClosed,
    ConfigError,
    DeadlineExceeded,
    DuplicateName,
    EndOfStream,
    PlacementError,
    UnknownName,
)
from rlinf.scheduler import Channel
from rlinf.scheduler.transport.channel_registry import Site
from rlinf.scheduler.transport.sockets.server import _ServedConnection
from rlinf.scheduler.transport.sockets.socket_transport import SocketTransport
from rlinf.scheduler.transport.sockets.wire import send_frame
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Wait

SOON = 0.1


def test_names(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    found = beside(lambda: Channel.connect_at(b, "late"))
    time.sleep(SOON)
    made = run.create("late", a, 3, local=True)
    assert found()._info.host == "a.0"
    assert (through(b, made).maxsize, through(b, made).distributed) == (3, False)
    with pytest.raises(DuplicateName, match="channel 'late'"):
        run.create("late", b)
    for transport in (run.driver, b):
        with pytest.raises(UnknownName, match=r"channel 'lte': .* no process created it.*Did you mean 'late'\?"):
            Channel.connect_at(transport, "lte", SOON)
        with pytest.raises(UnknownName, match=r"no group 'aa' to be near\. Did you mean 'a'\?"):
            Channel.create_at(transport, "x", 0, Site(near="aa"))
        with pytest.raises(PlacementError, match=r"node 2\. There are some on: 0, 1\."):
            Channel.create_at(transport, "x", 0, Site(node_rank=2))
        with pytest.raises(ConfigError, match="maxsize: expected at least 0, found -1"):
            Channel.create_at(transport, "x", -1, Site())
        with pytest.raises(ConfigError, match="one of near, distributed"):
            Channel.create_at(transport, "x", 0, Site(node_rank=1, distributed=True))
    assert run.create("on-1", node_rank=1)._info.host == "b.0"
    assert run.create("on-0", node_rank=0)._info.host == DRIVER


def test_a_key_is_where_it_was_first_used(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    channel = run.create("c", distributed=True)
    here, there = through(a, channel), through(b, channel)
    assert there.qsize("mine") == 0
    here.put(1, key="mine")
    there.put(2, key="yours")
    assert a.queues.size(("c", "mine")) == 1
    assert b.queues.size(("c", "yours")) == 1
    assert (there.get("mine"), here.get("yours")) == (1, 2)
    waiting = beside(lambda: there.get("mine"))
    here.put(3, key="mine")
    assert waiting() == 3
    here.put(4, key="mine")
    there.close()
    assert there.get("mine") == 4
    for end in (here, there, through(run.driver, channel)):
        for key in ("mine", "yours", f"new to {end}"):
            with pytest.raises(EndOfStream):
                end.get(key)
            with pytest.raises(ChannelClosed):
                end.put(0, key=key)


def test_arrays_are_taken_as_they_are(pair: tuple[Channel, Channel]) -> None:
    here, there = pair
    arrays = [np.zeros(4), np.zeros(1 << 16), np.zeros(1 << 20)]
    for array in arrays:
        here.put(array, async_op=True)
        array += 1
    for array in arrays:
        found = there.get(async_op=True).wait()
        assert found.shape == array.shape
        assert not found.any()
        found += 1


def test_many_keys_leave_nothing(pair: tuple[Channel, Channel], run: Run, a: SocketTransport, b: SocketTransport) -> None:
    here, there = pair
    for i in range(300):
        here.put(i, key=i)
        assert there.get(i) == i
        handle = there.get(i, async_op=True)
        here.put(i, key=i)
        assert handle.wait() == i
        handle = there.get((i, "never"), async_op=True)
        del handle
    for transport in (run.driver, a, b):
        until(lambda transport=transport: not transport.queues._queues)
        for connection in transport.connections._open.values():
            until(lambda connection=connection: not connection._requests and not connection._unattended)


def test_no_thread_for_each_operation(run: Run, a: SocketTransport) -> None:
    channel = through(a, run.create("c"))
    channel.put(0)
    first = channel.get(async_op=True)
    first.wait()
    before = threading.active_count()
    handles = [channel.get(async_op=True) for _ in range(200)]
    assert threading.active_count() <= before, "those of earlier tests may end meanwhile"
    for i in range(200):
        channel.put(i)
    assert [handle.wait() for handle in handles] == list(range(200))


def test_a_new_process_knows_what_was_closed(run: Run, a: SocketTransport) -> None:
    channel = through(a, run.create("c"))
    channel.put(1)
    channel.close()
    late = through(run.transport("late.0"), channel)
    with pytest.raises(ChannelClosed, match="closed by"):
        late.put(2)
    assert list(late) == [1]


def test_gets_that_end_at_their_deadline_take_nothing(pair: tuple[Channel, Channel]) -> None:
    """Items come around the moment at which gets give up, again and again."""
    here, there = pair
    stop = threading.Event()

    def write() -> int:
        count = 0
        while not stop.is_set():
            here.put(count)
            count += 1
            time.sleep(0.001)
        return count

    written = beside(write)
    got: list[int] = []
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        try:
            got.append(there.get(timeout=0.001))
        except DeadlineExceeded:
            handle = there.get(async_op=True)
            time.sleep(0.0005)
            if not handle.cancel():
                got.append(handle.wait())
    stop.set()
    count = written()
    until(lambda: there.qsize() == count - len(got))
    got += [there.get() for _ in range(count - len(got))]
    assert got == list(range(count))


def test_an_item_that_crosses_a_cancellation_is_not_overtaken(
    run: Run, a: SocketTransport, b: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = run.create("c", a, local=True)
    there = through(b, here)
    cancel, given_up, answered = _ServedConnection._cancel, threading.Event(), threading.Event()

    def slowly(connection: _ServedConnection, number: int) -> None:
        given_up.set()
        answered.wait(60.0)
        cancel(connection, number)

    monkeypatch.setattr(_ServedConnection, "_cancel", slowly)
    there.qsize()  # connects, which may take longer than the get below
    late = beside(lambda: there.get(timeout=0.01))
    assert given_up.wait(60.0)
    here.put(1)  # answers the get before its cancellation is read
    answered.set()
    with pytest.raises(DeadlineExceeded):
        late()
    handle = there.get(async_op=True)
    here.put(2)
    assert (handle.wait(), there.get()) == (1, 2)


def test_memory_is_flat(run: Run, a: SocketTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf.scheduler.transport.waits.QUEUES", 64)  # who used which queue last, for so many
    channel = run.create("c", near="a")
    mine = through(a, channel)

    def pass_on(start: int) -> None:
        for i in range(start, start + 1500):
            channel.put(i, key=i)
            assert mine.get(i) == i
            handle = channel.get(i, async_op=True)
            mine.put(i, key=i)
            assert handle.wait() == i

    pass_on(0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pass_on(1500)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 300_000  # 3,000 items of 100 bytes would be that
    finally:
        tracemalloc.stop()


def test_a_stopped_reader_keeps_nobody_waiting(run: Run, a: SocketTransport, b: SocketTransport) -> None:
    """A large answer to a peer that does not read must not stop the thread that serves the writer."""
    channel = run.create("c")
    here, there = through(a, channel), through(b, channel)
    waiting = b.connections.connect(DRIVER, "requests", Wait("b", "c", "it"))  # asks, and never reads
    for number in range(3):
        send_frame(waiting, ("get", number, ("c", "default"), None, False))
    until(lambda: len(getattr(run.driver.queues._queues.get(("c", "default")), "getters", ())) == 3)
    for i in range(5):
        here.put(np.full(1 << 20, i))
    assert there.get(timeout=60.0)[0] == 3
    waiting.close()
    assert sorted(int(there.get()[0]) for _ in range(4)) == [0, 1, 2, 4]


def test_the_end_waits_for_items_on_their_way(run: Run, a: SocketTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = through(a, run.create("c"))
    post = _ServedConnection._post

    def slowly(connection: _ServedConnection, *item: Any) -> None:
        time.sleep(SOON)
        post(connection, *item)

    monkeypatch.setattr(_ServedConnection, "_post", slowly)
    for i in range(3):
        channel.put(i)
    run.driver.channels.end("c", "closed by a test")
    assert list(channel) == [0, 1, 2]


def test_the_end_does_not_wait_for_a_process_that_is_gone(
    run: Run, a: SocketTransport, b: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf.scheduler.transport.sockets.socket_transport.ANSWERS_S", 60.0)
    channel = run.create("c", near="b")
    through(a, channel).put(0)
    b.connections.to("a.0", Wait("b", "c", "it"))
    a.stop()
    for connection in a.connections._open.values():
        connection._sock.close()
    start = time.monotonic()
    channel.close()
    assert time.monotonic() - start < 40.0


def test_the_end_does_not_wait_for_hosts_that_do_not_answer(
    run: Run, a: SocketTransport, b: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf.scheduler.transport.sockets.socket_transport.ANSWERS_S", SOON)
    channel = run.create("c", distributed=True)
    through(b, channel).put(0, key="theirs")
    through(a, channel).put(0, key="mine")
    stopped, late = threading.Event(), threading.Event()

    def answer_late(*_: Any) -> None:
        stopped.wait(30.0)
        late.set()

    a.server.serve("end", answer_late)
    try:
        channel.close()
        assert not late.is_set()
        assert through(b, channel).get("theirs") == 0
        with pytest.raises(EndOfStream):
            through(b, channel).get("theirs")
    finally:
        stopped.set()

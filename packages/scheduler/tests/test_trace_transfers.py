"""What a trace says of puts, gets and waits for devices: sizes, pairs, and how long somebody waited."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from one_queue import OneQueue

from rlinf.core.errors import DeadlineExceeded
from rlinf.scheduler.trace import spans
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.trace.transfers import TracedLocks, TracedTransport
from rlinf.scheduler.transport.queues import Get
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait
from rlinf.scheduler.workers.device_lock import Claim, Locks

SOON = Wait("env[0]", "queue", "an item", 60.0)
BRIEFLY = Wait("env[0]", "queue", "an item", 0.05)


def record(folder: Path, process: str = "env.0") -> Recorder:
    return Recorder(folder, process)


def test_transfers_are_paired_and_sized(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    transport = TracedTransport(OneQueue(), recorder)
    for i in range(3):
        transport.put("h", ("c", i % 2), 2, [b"123", bytearray(7)], 0, SOON)
    assert transport.size("h", ("c", 0), SOON) == 2
    assert [[bytes(blob) for blob in blobs] for blobs in transport.get("h", ("c", 0), 4, SOON)] == [[b"123", bytes(7)]] * 2
    assert transport.get("h", ("c", 1), None, SOON) == [[b"123", bytearray(7)]]
    transport.put("h", ("p2p", "rollout.1", "env.0", "w"), 0, [b"x"], 0, SOON)
    transport.get("h", ("p2p", "rollout.1", "env.0", "w"), None, SOON)
    with pytest.raises(DeadlineExceeded):
        transport.get("h", ("c", 0), None, BRIEFLY)
    recorder.close()
    found = list(spans(tmp_path))
    assert [(span.kind, span.name, span.key, span.items, span.bytes, span.status) for span in found] == [
        ("put", "c", "0", 1, 10, "ok"),
        ("put", "c", "1", 1, 10, "ok"),
        ("put", "c", "0", 1, 10, "ok"),
        ("get", "c", "0", 2, 20, "ok"),
        ("get", "c", "1", 1, 10, "ok"),
        ("send", "w", "rollout[1]", 1, 1, "ok"),
        ("recv", "w", "env[0]", 1, 1, "ok"),
        ("get", "c", "0", 0, 0, "failed"),
    ]
    a, b, c = (span.ids[0] for span in found[:3])
    assert len({a, b, c}) == 3
    assert [span.ids for span in found[3:7]] == [(a, c), (b,), found[5].ids, found[5].ids]
    assert found[3].waited == 0
    assert 0.049e9 < found[7].waited <= found[7].end - found[7].start


def test_a_get_waits_until_its_item_was_put_and_no_longer(tmp_path: Path) -> None:
    class Slow(OneQueue):
        """Items come 30 ms after they were asked for, and take 50 ms on their way."""

        def start_get(self, host: str, queue: Any, target: int | None, wait: Wait, *, now: bool = False) -> Get:
            time.sleep(0.03)
            traced.put(host, queue, 1, [b"x"], 0, wait)
            time.sleep(0.05)
            return super().start_get(host, queue, target, wait)

    recorder = record(tmp_path)
    traced = TracedTransport(Slow(), recorder)
    traced.get("h", ("c", 0), None, SOON)
    traced.get("h", ("c", 0), 1, SOON)
    traced.put("h", ("c", 2), 0, [b"x"], 4, SOON)
    recorder.close()
    found = [span for span in spans(tmp_path) if span.kind == "get"]
    for span in found:
        assert 0.03e9 <= span.waited < span.end - span.start - 0.04e9
    bounded = [span for span in spans(tmp_path) if span.kind == "put"][-1]
    assert 0 < bounded.waited <= bounded.end - bounded.start


@pytest.mark.parametrize("ahead", [0, 3600, -3600])
def test_a_get_from_another_machine_waits_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Each machine counts from its own start: their wall clocks say what is at the same time."""
    clock = [10**15]
    monkeypatch.setattr("rlinf.scheduler.trace.transfers.time", SimpleNamespace(monotonic_ns=lambda: clock[0]))

    class Slow(OneQueue):
        """Items are put 30 ns after they were asked for, and come 50 ns later."""

        def start_get(self, host: str, queue: Any, target: int | None, wait: Wait, *, now: bool = False) -> Get:
            clock[0] += 30 + ahead * 10**9
            theirs.put(host, queue, 1, [b"x"], 0, wait)
            clock[0] += 50 - ahead * 10**9
            return super().start_get(host, queue, target, wait)

    transport, here, there = Slow(), record(tmp_path), record(tmp_path, "env.1")
    there.clock = (here.clock[0] + 1, here.clock[1] - ahead * 10**9)
    mine, theirs = TracedTransport(transport, here), TracedTransport(transport, there)
    mine.get("h", ("c", 0), None, SOON)
    here.close()
    there.close()
    assert [span.waited for span in spans(tmp_path) if span.kind == "get"] == [30]


def test_a_batch_that_its_next_item_ended_waited_all_the_time(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    transport = TracedTransport(OneQueue(), recorder)
    transport.put("h", ("c", 0), 2, [b"a"], 0, SOON)
    transport.put("h", ("c", 0), 9, [b"b"], 0, SOON)
    assert transport.get("h", ("c", 0), 4, SOON) == [[b"a"]]
    recorder.close()
    *_, span = spans(tmp_path)
    assert 0 < span.waited <= span.end - span.start


def test_long_keys_are_cut(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    TracedTransport(OneQueue(), recorder).put("h", ("c", "k" * 1000), 0, [b"x"], 0, SOON)
    recorder.close()
    (span,) = spans(tmp_path)
    assert len(span.key) == 64


def test_a_wait_for_devices_is_a_span(tmp_path: Path) -> None:
    recorder = record(tmp_path)
    locks = TracedLocks(Locks(lambda: ThreadMonitor(5.0)), recorder)
    first, second = Claim("env[0]", (0,)), Claim("env[1]", (0,))
    locks.acquire(first, Wait("env[0]", "device 0", "the lock"))
    with pytest.raises(DeadlineExceeded):
        locks.acquire(second, Wait("env[1]", "device 0", "the lock", 0.0))
    locks.release(first)
    recorder.close()
    assert [(s.kind, s.who, s.name, s.status) for s in spans(tmp_path)] == [
        ("lock", "env[0]", "device 0", "ok"),
        ("lock", "env[1]", "device 0", "failed"),
    ]

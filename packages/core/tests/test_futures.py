"""`gather`: results in order, one deadline, and the first cause."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from typing import Any

import pytest

from rlinf.core.errors import ChannelClosed, ConfigError, DeadlineExceeded, WorkerError
from rlinf.core.futures import gather, gather_within


class Call:
    """A future over a thread."""

    def __init__(self, label: str, function: Callable[[], Any], pool: ThreadPoolExecutor) -> None:
        self.label = label
        self._future = pool.submit(function)

    def wait(self, timeout: float | None = None) -> Any:
        try:
            return self._future.result(timeout)
        except NotDone:
            if self._future.done():
                raise
            raise DeadlineExceeded(self.label, "not done") from None

    def done(self) -> bool:
        return self._future.done()


@pytest.fixture
def call() -> Any:
    pool = ThreadPoolExecutor(8)
    yield lambda label, function: Call(label, function, pool)
    pool.shutdown(wait=True)


def fail(error: Exception, after: float = 0.0) -> Callable[[], Any]:
    def run() -> None:
        time.sleep(after)
        raise error

    return run


def test_results_are_in_order(call: Any) -> None:
    slow = call("slow", lambda: time.sleep(0.1) or "slow")
    fast = call("fast", lambda: "fast")
    assert gather(slow, fast, timeout=5) == ["slow", "fast"]
    assert gather(timeout=5) == []


def test_a_deadline_names_what_still_runs(call: Any) -> None:
    release = threading.Event()
    start = time.monotonic()
    with pytest.raises(
        DeadlineExceeded, match=r"^env\.interact, actor\.recv: not done after 0\.2 s\. Pass a longer timeout"
    ) as late:
        gather(
            call("env.interact", lambda: release.wait(5)),
            call("done", int),
            call("actor.recv", lambda: release.wait(5)),
            timeout=0.2,
        )
    assert time.monotonic() - start < 2
    assert "timeout_s" not in str(late.value), "whose key that would be is not known here"
    release.set()


def test_a_failure_ends_the_wait_at_once(call: Any) -> None:
    release = threading.Event()
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        gather(call("stuck", lambda: release.wait(10)), call("bad", lambda: 1 // 0), timeout=10)
    assert time.monotonic() - start < 2
    release.set()


def test_the_first_cause_is_raised_and_its_consequences_are_notes(call: Any) -> None:
    closed = ChannelClosed("channel rollout", "closed by its other end")
    cause = WorkerError("env", 1, "interact", "killed by signal 9")
    with pytest.raises(WorkerError, match=r"^env\[1\] failed in interact\(\): killed") as caught:
        gather(call("rollout", fail(closed)), call("env", fail(cause, after=0.3)), timeout=10)
    assert caught.value.__notes__ == ["In consequence: channel rollout: closed by its other end"]


def test_a_secondary_worker_error_yields_to_the_first_cause(call: Any) -> None:
    secondary = WorkerError("actor", 0, "recv", "its group failed", secondary=True)
    with pytest.raises(ValueError, match="cause"):
        gather(call("actor", fail(secondary)), call("env", fail(ValueError("cause"), after=0.2)), timeout=10)


def test_a_consequence_alone_is_still_raised(call: Any) -> None:
    with pytest.raises(ChannelClosed):
        gather(call("a", fail(ChannelClosed("channel", "closed"))), call("b", lambda: 1), timeout=10)


def test_a_deadline_of_the_call_itself_is_a_failure(call: Any) -> None:
    with pytest.raises(DeadlineExceeded, match="channel rollout"):
        gather(call("a", fail(DeadlineExceeded("channel rollout", "nothing came in 1 s"))), timeout=10)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0])
def test_a_timeout_that_no_clock_reaches_is_refused(call: Any, timeout: float) -> None:
    with pytest.raises(ConfigError, match=r"^gather\(\): timeout: expected 0 to 2000000 seconds, found"):
        gather(call("a", int), timeout=timeout)


def test_a_call_that_fails_beside_ends_the_wait(call: Any) -> None:
    slow, broken = call("slow", lambda: time.sleep(3.0)), call("broken", fail(WorkerError("env", 0, "play", "died"), after=0.1))
    with pytest.raises(WorkerError, match="died"):
        gather_within(30.0, [slow], remedy="", beside=[broken])
    assert not slow.done(), "it was not waited for"


def test_a_call_beside_is_not_waited_for(call: Any) -> None:
    fast, slow = call("fast", lambda: 1), call("slow", lambda: time.sleep(3.0))
    assert gather_within(30.0, [fast], remedy="", beside=[slow]) == [1]
    assert not slow.done()
    assert gather_within(30.0, [fast], remedy="", beside=[fast]) == [1]


def test_the_failure_that_is_shown_is_the_cause_beside(call: Any) -> None:
    closed = call("actor", fail(ChannelClosed("actor", "the other end is gone")))
    died = call("env", fail(WorkerError("env", 0, "play", "died"), after=0.2))
    with pytest.raises(WorkerError, match="died"):
        gather_within(30.0, [closed], remedy="", beside=[died])

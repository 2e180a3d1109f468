"""`gather`: results in order, one deadline, and the first cause."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.cluster.futures import gather, gather_within
from rlinf.core.errors import ChannelClosed, ConfigError, DeadlineExceeded, Deadlock, WorkerError


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


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consequence waits long for its cause, whose thread a busy machine may not run for a while; it comes at once otherwise."""
    monkeypatch.setattr("rlinf.core.cluster.futures.GRACE_S", 60.0)


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
    assert gather(slow, fast, timeout=60) == ["slow", "fast"]
    assert gather(timeout=60) == []


def test_a_deadline_names_what_still_runs(call: Any) -> None:
    release = threading.Event()
    done = call("done", int)
    done.wait()
    start = time.monotonic()
    with pytest.raises(
        DeadlineExceeded, match=r"^env\.interact, actor\.recv: not done after 0\.2 s\. Pass a longer timeout"
    ) as late:
        gather(
            call("env.interact", lambda: release.wait(60)),
            done,
            call("actor.recv", lambda: release.wait(60)),
            timeout=0.2,
        )
    assert time.monotonic() - start < 40
    assert "timeout_s" not in str(late.value), "whose key that would be is not known here"
    release.set()


def test_a_failure_ends_the_wait_at_once(call: Any) -> None:
    release = threading.Event()
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        gather(call("stuck", lambda: release.wait(60)), call("bad", lambda: 1 // 0), timeout=60)
    assert time.monotonic() - start < 40
    release.set()


def test_the_first_cause_is_raised_and_its_consequences_are_notes(call: Any) -> None:
    closed = ChannelClosed("channel rollout", "closed by its other end")
    cause = WorkerError("env", 1, "interact", "killed by signal 9")
    with pytest.raises(WorkerError, match=r"^env\[1\] failed in interact\(\): killed") as caught:
        gather(call("rollout", fail(closed)), call("env", fail(cause, after=0.3)), timeout=60)
    assert caught.value.__notes__ == ["In consequence: channel rollout: closed by its other end"]


def test_that_all_wait_where_a_worker_has_failed_is_no_news(call: Any) -> None:
    stuck = Deadlock("local cluster", "every task waits for another")
    cause = WorkerError("env", 1, "interact", "is gone", remote_traceback="Traceback (…", told=True)
    for first, second in ((stuck, cause), (cause, stuck)):
        with pytest.raises(WorkerError) as caught:
            gather(call("one", fail(first)), call("other", fail(second, after=0.2)), timeout=60)
        assert getattr(caught.value, "__notes__", []) == []
    with pytest.raises(Deadlock):
        gather(call("one", fail(stuck)), call("other", lambda: 1), timeout=60)


def test_a_secondary_worker_error_yields_to_the_first_cause(call: Any) -> None:
    secondary = WorkerError("actor", 0, "recv", "its group failed", secondary=True)
    with pytest.raises(ValueError, match="cause"):
        gather(call("actor", fail(secondary)), call("env", fail(ValueError("cause"), after=0.2)), timeout=60)


def test_a_consequence_alone_is_still_raised(call: Any) -> None:
    with pytest.raises(ChannelClosed):
        gather(call("a", fail(ChannelClosed("channel", "closed"))), call("b", lambda: 1), timeout=60)


def test_a_cause_is_looked_for_no_longer_than_promised_however_many_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Hangs:
        label = "hangs"

        def wait(self, timeout: float | None = None) -> Any:
            clock[0] += timeout or 0.0
            raise DeadlineExceeded(self.label, "not done")

        def done(self) -> bool:
            return False

    class Closed(Hangs):
        def wait(self, timeout: float | None = None) -> Any:
            raise ChannelClosed("channel", "closed")

    monkeypatch.setattr("rlinf.core.cluster.futures.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("rlinf.core.cluster.futures.GRACE_S", 2.0)
    with pytest.raises(ChannelClosed):
        gather(Closed(), *(Hangs() for _ in range(100)), timeout=60)
    assert clock[0] == pytest.approx(2.0, abs=0.06)


def test_a_deadline_of_the_call_itself_is_a_failure(call: Any) -> None:
    with pytest.raises(DeadlineExceeded, match="channel rollout"):
        gather(call("a", fail(DeadlineExceeded("channel rollout", "nothing came in 1 s"))), timeout=60)


def test_a_deadline_that_is_noticed_late_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Turns:
        """The call of a worker that shares the process: the wait for it ends when it, or another one, has run on."""

        label = "env[0].step()"

        def wait(self, timeout: float | None = None) -> Any:
            clock[0] += 30.0
            raise DeadlineExceeded(self.label, "not done")

        def done(self) -> bool:
            return False

    monkeypatch.setattr("rlinf.core.cluster.futures.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(DeadlineExceeded, match=r"not done after 2 s; noticed 28\.0 s late, as other work of this process ran on"):
        gather(Turns(), timeout=2.0)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0, "3"])
def test_a_timeout_that_no_clock_reaches_is_refused(call: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"^gather\(\): timeout: expected 0 to 2000000 seconds, found"):
        gather(call("a", int), timeout=timeout)


def test_a_call_that_fails_beside_ends_the_wait(call: Any) -> None:
    release = threading.Event()
    slow = call("slow", lambda: release.wait(60))
    broken = call("broken", fail(WorkerError("env", 0, "play", "died"), after=0.1))
    with pytest.raises(WorkerError, match="died"):
        gather_within(60.0, [slow], remedy="", beside=[broken])
    assert not slow.done(), "it was not waited for"
    release.set()


def test_a_call_beside_is_not_waited_for(call: Any) -> None:
    release = threading.Event()
    fast, slow = call("fast", lambda: 1), call("slow", lambda: release.wait(60))
    assert gather_within(60.0, [fast], remedy="", beside=[slow]) == [1]
    assert not slow.done()
    assert gather_within(60.0, [fast], remedy="", beside=[fast]) == [1]
    release.set()


def test_the_failure_that_is_shown_is_the_cause_beside(call: Any) -> None:
    closed = call("actor", fail(ChannelClosed("actor", "the other end is gone")))
    died = call("env", fail(WorkerError("env", 0, "play", "died"), after=0.2))
    with pytest.raises(WorkerError, match="died"):
        gather_within(60.0, [closed], remedy="", beside=[died])

"""Supervisors and failures, without processes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import pytest

from rlinf.core.errors import ChannelClosed, ConfigError, RLinfError, WorkerError
from rlinf.core.worker import idempotent
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.failures import GRACE_S, Failures
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.workers.supervisor import Supervisor


class Pupil(Worker):
    @idempotent
    def read(self) -> None:
        pass

    def write(self) -> None:
        pass

    def fail(self) -> None:
        raise ValueError("broken")

    def play(self, seconds: float) -> None:
        """Lets the other rank have its turn again and again."""
        end, going = time.monotonic() + seconds, True
        while going:
            going = time.monotonic() < end
            self.send(going, self.group_name, 1 - self.rank)
            going = self.recv(self.group_name, 1 - self.rank) and going


def test_restarts_are_counted_within_a_window_and_delays_double() -> None:
    supervisor = Supervisor("restart", max_restarts=2, window_s=10.0, backoff_s=0.5)
    assert supervisor.delay([], 100.0) == 0.5
    assert supervisor.delay([95.0], 100.0) == 1.0
    assert supervisor.delay([95.0, 96.0], 100.0) is None
    assert supervisor.delay([89.0, 90.0, 96.0], 100.0) == 1.0
    assert Supervisor("restart", max_restarts=1).delay([-math.inf], 0.0) == 0.5
    assert Supervisor("restart", max_restarts=1).delay([-1e9], 0.0) is None
    assert Supervisor().delay([], 0.0) is None


def test_what_is_issued_again() -> None:
    supervisor = Supervisor("restart", idempotent=("write",))
    assert supervisor.reissues(Pupil, "read")
    assert supervisor.reissues(Pupil, "write")
    assert not supervisor.reissues(Pupil, "fail")
    assert not Supervisor().reissues(Pupil, "read")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "retry"}, "supervisor.policy: expected 'fail' or 'restart', found 'retry'"),
        ({"max_restarts": -1}, "supervisor.max_restarts"),
        ({"window_s": 0.0}, "supervisor.window_s"),
        ({"backoff_s": math.inf}, "supervisor.backoff_s"),
        ({"idempotent": "read"}, "supervisor.idempotent"),
    ],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Supervisor(**options)


def error(problem: str = "broken") -> WorkerError:
    return WorkerError("pupil", 1, "fail", problem)


def fail(failures: Failures) -> None:
    broken = error()
    failures.expect("call", broken)
    failures.raised("call", broken)


def test_the_first_failure_is_kept_told_once_and_raised_by_all() -> None:
    ended: list[RLinfError] = []
    heard: list[RLinfError] = []
    failures = Failures(ended.append)
    failures.listen(heard.append)
    failures.listen(lambda _: 1 / 0)
    first = error()
    failures.end(first)
    failures.end(error("a consequence"))
    failures.stop("shut down")
    assert (ended, heard) == ([first], [first])
    for _ in range(2):
        with pytest.raises(WorkerError, match="broken") as caught:
            failures.check()
        assert caught.value is not first
    with pytest.raises(WorkerError, match="broken") as caught, failures.guard():
        raise ChannelClosed("channel", "its host is gone")
    with pytest.raises(WorkerError, match="broken") as caught:
        failures.throw(ChannelClosed("channel", "its host is gone"))
    assert caught.value.__notes__ == ["In consequence: channel: its host is gone"]
    assert not getattr(first, "__notes__", [])


def test_what_the_caller_has_seen_ends_nothing() -> None:
    failures = Failures(lambda _: None)
    fail(failures)
    failures.seen("call")
    time.sleep(GRACE_S + 0.2)
    failures.check()
    assert not failures.over


def test_what_nobody_has_seen_ends_the_wait_of_the_driver_and_its_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Failures(lambda _: None)
    start = time.monotonic()
    fail(failures)
    wait = Wait("driver", "channel", "an item")
    failures.wait_until(lambda: failures.over, wait, 60.0)
    assert GRACE_S * 0.9 < time.monotonic() - start < 40.0
    with pytest.raises(WorkerError, match="broken"):
        failures.check()

    idle = Failures(lambda _: None)
    fail(idle)
    time.sleep(GRACE_S + 0.2)
    assert not idle.over
    with pytest.raises(WorkerError, match="broken"):
        idle.check()

    monkeypatch.setattr("rlinf.scheduler.failures.GRACE_S", 60.0)
    early = Failures(lambda _: None)
    fail(early)
    early.check()


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_an_exception_that_nobody_waits_for_ends_every_other_wait(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(cluster_cfg={"backend": backend, "timeout_s": 60.0}) as cluster:
        strategy = NodePlacementStrategy([0, 0])
        loud, other = (Pupil.create_group().launch(cluster, name=name, placement_strategy=strategy) for name in ("loud", "other"))
        with pytest.raises(WorkerError, match="broken"):
            other.fail().wait()
        other.play(GRACE_S + 0.2).wait()
        running = other.play(60.0)
        loud.execute_on(1).fail()
        channel = cluster.create_channel("never")
        late = lambda: Pupil.create_group().launch(cluster, name="late")  # noqa: E731
        for wait in (running.wait, channel.get, running.wait, other.write, late):
            with pytest.raises(WorkerError, match=r"^loud\[1\] failed in fail\(\): ValueError: broken") as caught:
                wait()
            assert "in fail" in caught.value.remote_traceback
        assert running.done()
        loud.shutdown()
    assert sum("loud[1] failed in fail(): Val" in record.message for record in caplog.records) == 1


def test_on_the_local_back_end_a_coroutine_may_wait_for_a_failed_call_later() -> None:
    async def both(group: Any, other: Any) -> list[Any]:
        return await asyncio.gather(group.play(GRACE_S + 0.2), other.write(), other.fail(), return_exceptions=True)

    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        group = Pupil.create_group().launch(cluster, name="pupil", placement_strategy=NodePlacementStrategy([0, 0]))
        other = Pupil.create_group().launch(cluster, name="other")
        played, written, error = asyncio.run(both(group, other))
        assert (played, written) == ([None, None], [None])
        assert isinstance(error, WorkerError)
        assert other.write().wait() == [None]


def test_a_shutdown_ends_waits_with_its_reason() -> None:
    failures = Failures(lambda _: None)
    threading.Timer(0.1, failures.stop, ("the cluster was shut down",)).start()
    assert failures.wait_until(lambda: failures.over, Wait("driver", "call", "its end"), 30.0)
    with pytest.raises(ChannelClosed, match="shut down"), failures.guard():
        raise AssertionError


def test_on_the_local_back_end_a_policy_is_accepted_and_failures_are_heard() -> None:
    heard: list[RLinfError] = []
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        cluster.on_failure(heard.append)
        group = Pupil.create_group().launch(cluster, name="pupil", supervisor=Supervisor("restart"))
        handle = group.fail()
        assert group.write().wait() == [None]
        assert [str(one) for one in heard] == ["pupil[0] failed in fail(): ValueError: broken"]
        with pytest.raises(WorkerError, match="broken"):
            handle.wait()
        assert group.restarts == (0,)
        with pytest.raises(ConfigError, match=r"group 'other': supervisor\.idempotent: Pupil has no method 'rad'"):
            Pupil.create_group().launch(cluster, name="other", supervisor=Supervisor("restart", idempotent=("rad",)))

"""Workers that call other groups by name."""

import asyncio
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.errors import DeadlineExceeded, RLinfError, WorkerError
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker, WorkerGroup
from rlinf.scheduler.workers.calls import Outcome, WorkerInfo
from rlinf.scheduler.workers.group_registry import GroupRegistry
from rlinf.scheduler.workers.remote_groups import find

BACKENDS = ("local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow]))


class Store(Worker):
    def __init__(self, start: int) -> None:
        super().__init__()
        self.values = [start + self.rank]

    def add(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values)

    def read(self) -> list[Any]:
        return self.values

    async def slow(self) -> int:
        await asyncio.sleep(0.01)
        return self.rank

    def fail(self) -> None:
        raise ValueError("no such thing")

    def wait_for_ever(self) -> None:
        self.recv("nobody", 0)

    def pid(self) -> int:
        return os.getpid()


class Caller(Worker):
    def use(self) -> tuple[Any, ...]:
        group = WorkerGroup.from_group_name(Store, "store")
        handles = [group.add(np.full(3, i)) for i in range(3)]
        counts = [handle.wait() for handle in handles]
        one = group.execute_on(1).read().wait()[0]
        return counts, [np.asarray(value).sum() for value in one], group.slow().wait(), group.world_size

    def refusals(self) -> list[str]:
        said: list[str] = []
        calls: list[Any] = [
            lambda: WorkerGroup.from_group_name(Store, "stor"),
            lambda: WorkerGroup.from_group_name(Caller, "store"),
            lambda: WorkerGroup.from_group_name(Store, "store").reed,
            lambda: WorkerGroup.from_group_name(Store, "store").fail().wait(),
        ]
        for call in calls:
            try:
                call()
            except RLinfError as error:
                said.append(f"{type(error).__name__}: {error}")
        return said

    def late(self) -> str:
        handle = WorkerGroup.from_group_name(Store, "store").execute_on(0).wait_for_ever()
        try:
            handle.wait(timeout=0.5)
        except DeadlineExceeded as error:
            return f"{handle.done()} {error}"
        return ""

    def hit(self) -> None:
        group = WorkerGroup.from_group_name(Store, "store")
        os.kill(group.execute_on(1).pid().wait()[0], signal.SIGKILL)
        group.read().wait()


@pytest.fixture(params=BACKENDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"backend": request.param, "timeout_s": 60.0, "log_dir": str(tmp_path)}) as made:
        yield made


def test_a_worker_calls_another_group(cluster: Cluster) -> None:
    Store.create_group(10).launch(cluster, NodePlacementStrategy([0, 0]), "store")
    caller = Caller.create_group().launch(cluster, NodePlacementStrategy([0]), "caller")
    counts, sums, ranks, size = caller.use().wait()[0]
    assert counts == [[2, 2], [3, 3], [4, 4]]
    assert sums == [11, 0, 3, 6]
    assert ranks == [0, 1]
    assert size == 2
    missing, other, method, failed = caller.refusals().wait()[0]
    assert "UnknownName: group 'stor': it was not launched. Did you mean 'store'?" in missing
    assert "expected workers of Caller, found Store" in other
    assert "'reed'" in method
    assert re.search(r"WorkerError: store\[[01]\] failed in fail\(\): ValueError: no such thing", failed)
    assert caller.use().wait()[0][2] == [0, 1]


@pytest.mark.ray
def test_what_ends_a_call_of_a_worker(tmp_path: Path) -> None:
    with Cluster(cluster_cfg={"timeout_s": 60.0, "log_dir": str(tmp_path)}) as cluster:
        Store.create_group(10).launch(cluster, NodePlacementStrategy([0, 0]), "store")
        caller = Caller.create_group().launch(cluster, NodePlacementStrategy([0]), "caller")
        late = caller.late().wait()[0]
        assert late.startswith("False store[0].wait_for_ever(): caller[0] waited 0.5 s for it to return in vain")
        with pytest.raises(WorkerError, match=r"^store\[1\] failed .*: the process died \(it was killed by SIGKILL\)"):
            caller.hit().wait()


class Ended:
    """A call that has ended, as the driver has it."""

    label = "store[0].add()"

    def __init__(self, error: RLinfError | None) -> None:
        self.error = error

    def wait(self, timeout: float | None = None) -> Outcome:
        if self.error is not None:
            raise self.error
        return Outcome(value=1, seconds=0.0)

    def done(self) -> bool:
        return True

    def failed(self) -> bool:
        return self.error is not None

    def state(self) -> str:
        return ""

    def forgive(self) -> None:
        """Nobody else is to be told."""


class Driver:
    """The driver's registry, as a worker reaches it; what it answers is pickled."""

    def __init__(self, error: Callable[[], RLinfError | None]) -> None:
        self.registry = GroupRegistry(60.0)
        self.info, self.restarts = WorkerInfo(group="store", rank=0, devices=(), threads=1, pid=1, node=0), 0
        self.submit: Callable[..., Ended] = lambda *_: Ended(error())
        processes: list[Any] = [self]
        self.registry.add("store", Store, processes)

    def who(self) -> str:
        return "caller[0]"

    def ask(self, kind: str, *question: Any, wait: object) -> Any:
        try:
            return pickle.loads(pickle.dumps(self.registry.answer(*question)))
        except RLinfError as error:
            raise pickle.loads(pickle.dumps(error)) from None


@pytest.mark.parametrize("over", [False, True])
def test_only_what_ended_the_run_makes_a_failure_a_consequence(over: bool) -> None:
    """Whatever its text says: here a simulator died, not a process."""
    driver: Any = Driver(lambda: WorkerError("store", 0, "add", "RuntimeError: simulator died"))
    driver.registry.over = lambda: over
    call = find(driver, "store").processes[0].submit("add", (), {})
    with pytest.raises(WorkerError, match="simulator died") as caught:
        call.wait()
    assert caught.value.secondary is over


def test_the_driver_forgets_calls_of_workers_that_nobody_can_wait_for() -> None:
    errors = cycle([None, WorkerError("store", 0, "add", "ValueError: broken")])
    driver: Any = Driver(lambda: next(errors))
    (process,) = find(driver, "store").processes
    call: Any = None
    for number in range(20):
        call = process.submit("add", (), {})
        if number % 3:
            with suppress(WorkerError):
                call.wait()
                call.wait()
            call.forgive()
    assert (call.failed(), call.done(), call.state()) == (True, True, "")
    # What a worker has let go of it tells with its next call.
    assert list(driver.registry._calls) == [18, 19]
    waited = process.submit("add", (), {})
    assert list(driver.registry._calls) == [20]
    assert waited.wait().value == waited.wait().value == 1

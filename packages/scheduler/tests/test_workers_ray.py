"""Workers in processes of their own: environment, threads, async methods, children."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import all_dead

from rlinf.core.errors import WorkerError
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

pytestmark = pytest.mark.ray
TWO = NodePlacementStrategy([0, 0])


class Reader(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.at_birth = {name: os.environ.get(name) for name in self.environment}

    def environments(self) -> tuple[dict[str, str | None], dict[str, str]]:
        return self.at_birth, dict(self.environment)

    def on_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def current_in_thread(self) -> bool:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(Worker.current_worker))
        thread.start()
        thread.join()
        return found[0] is self


class Async(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def echo(self, item: Any, seconds: float = 0.0) -> Any:
        await asyncio.sleep(seconds)
        return item

    async def hold(self, item: Any) -> Any:
        await self.released.wait()
        return item

    async def release(self) -> None:
        self.released.set()

    async def exit(self) -> None:
        raise SystemExit(3)

    async def unsendable(self) -> Any:
        return threading.Lock()

    async def forever(self) -> None:
        await asyncio.sleep(600.0)


class Blocker(Worker):
    def wait(self) -> Any:
        return self.recv(self.group_name, self.rank, timeout=60.0)

    def open(self, item: str) -> None:
        self.send(item, self.group_name, self.rank)


class Parent(Worker):
    def start(self) -> int:
        self.child = self.start_child(sleep_for_ever)
        return self.child.pid

    def stop(self) -> bool:
        self.child.stop()
        return self.child.done()

    def fail_by_child(self) -> None:
        self.start_child(fail, "broken child")
        time.sleep(600.0)


def sleep_for_ever() -> None:
    time.sleep(600.0)


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"timeout_s": 120.0}) as cluster:
        yield cluster


def test_a_process_is_told_its_ranks_before_the_constructor(cluster: Cluster) -> None:
    group = Reader.create_group().launch(cluster, TWO, "reader")
    found = group.environments().wait()
    for rank, (at_birth, variables) in enumerate(found):
        assert at_birth == variables
        assert (variables["RANK"], variables["WORLD_SIZE"], variables["NODE_LOCAL_WORLD_SIZE"]) == (str(rank), "2", "2")
    first, second = found[0][1], found[1][1]
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == (second["MASTER_ADDR"], second["MASTER_PORT"])
    with socket.socket() as server:
        server.bind((first["MASTER_ADDR"], int(first["MASTER_PORT"])))
    assert group.on_main_thread().wait() == [True, True]
    assert group.current_in_thread().wait() == [True, True]


def test_async_calls_come_back_out_of_order_and_fail_as_others_do(cluster: Cluster) -> None:
    group = Async.create_group().launch(cluster, name="async")
    slow, fast = group.hold("slow"), group.echo("fast")
    assert fast.wait() == ["fast"]
    assert not slow.done()
    group.release().wait()
    assert slow.wait() == ["slow"]
    with pytest.raises(WorkerError, match=r"async\[0\] failed in exit\(\): SystemExit: 3"):
        group.exit().wait()
    with pytest.raises(WorkerError, match="unsendable"):
        group.unsendable().wait()
    assert [handle.wait() for handle in [group.echo(i, 0.01) for i in range(100)]] == [[i] for i in range(100)]


def test_calls_in_several_threads_may_wait_for_each_other(cluster: Cluster) -> None:
    group = Blocker.create_group().launch(cluster, name="blocker", max_concurrency=2)
    waiting = group.wait()
    group.open("key")
    assert waiting.wait() == ["key"]


def test_a_child_ends_when_it_is_told_to(cluster: Cluster) -> None:
    group = Parent.create_group().launch(cluster, name="parent")
    (pid,) = group.start().wait()
    assert group.stop().wait() == [True]
    assert all_dead([pid])


def test_a_child_ends_with_its_killed_worker_and_an_async_call_learns_of_its_death() -> None:
    with Cluster(cluster_cfg={"timeout_s": 120.0}) as cluster:
        parent = Parent.create_group().launch(cluster, name="parent")
        waiter = Async.create_group().launch(cluster, name="waiter")
        (pid,) = parent.start().wait()
        forever = waiter.forever()
        os.kill(waiter.worker_infos[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"waiter\[0\] failed in forever\(\): the process died"):
            forever.wait()
        os.kill(parent.worker_infos[0].pid, signal.SIGKILL)
        assert all_dead([pid])


def test_a_failed_child_fails_its_worker() -> None:
    with Cluster(cluster_cfg={"timeout_s": 120.0}) as cluster:
        group = Parent.create_group().launch(cluster, name="parent")
        with pytest.raises(WorkerError, match=r"parent\[0\] failed in fail_by_child\(\): the process died") as caught:
            group.fail_by_child().wait()
        assert "child parent:0:0 (fail) failed: ValueError: broken child" in caught.value.remote_traceback

"""Workers, groups and their handles: what needs no process of its own."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from rlinf.core.errors import ConfigError, DuplicateName, RLinfError, UnknownName, WorkerError
from rlinf.core.protocols import Channel
from rlinf.scheduler import (
    Cluster,
    FlexiblePlacementStrategy,
    Inventory,
    Node,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
    WorkerGroup,
)
from rlinf.scheduler.trace.reading import spans
from rlinf.scheduler.trace.recorder import Recorder
from rlinf.scheduler.workers.calls import Outcome, WorkerInfo, checked, perform
from rlinf.scheduler.workers.group import Handle
from rlinf.scheduler.workers.identity import plan_fields, rank_variables
from rlinf.scheduler.workers.launching import LaunchOptions
from rlinf.scheduler.workers.loops import Coroutines, ThreadTurn, WorkerLoop

ONE = NodePlacementStrategy([0])
TWO = NodePlacementStrategy([0, 0])


class Doer(Worker):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.stopped = False
        self.inside = 0
        self.most = 0
        self.released = asyncio.Event()

    def note(self, text: str) -> list[str]:
        self.seen.append(text)
        return list(self.seen)

    async def note_twice(self, text: str) -> list[str]:
        self.seen.append(f"{text} begins")
        await self.released.wait()
        self.seen.append(f"{text} ends")
        return list(self.seen)

    async def poll(self) -> str:
        while not self.stopped:
            await asyncio.sleep(0.001)
        return "stopped"

    def stop(self) -> None:
        self.stopped = True

    async def get(self, channel: Channel, count: int) -> list[Any]:
        works: list[Any] = [channel.get(async_op=True) for _ in range(count)]  # type: ignore[call-arg]
        return list(await asyncio.gather(*works))

    async def count_inside(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.released.wait()
        self.inside -= 1
        return self.most

    def release(self) -> int:
        self.released.set()
        return self.most

    async def stream(self) -> Any:
        yield 1

    def lazily(self) -> Any:
        return (number for number in range(3))

    def disguised(self) -> Any:
        return self.note_twice("never")


class Blocker(Worker):
    def put_later(self, channel: Channel) -> None:
        channel.put("late")

    def get(self, channel: Channel) -> Any:
        return channel.get()


@pytest.fixture
def local() -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"backend": "local", "timeout_s": 60.0}) as cluster:
        yield cluster


def test_calls_begin_in_order_and_async_ones_overlap(local: Cluster) -> None:
    group = Doer.create_group().launch(local)
    handles = [group.note("a"), group.note_twice("b"), group.note("c"), group.note_twice("d"), group.note("e")]
    group.release()
    assert [handle.wait()[0] for handle in handles][1] == ["a", "b begins", "c", "d begins", "e", "b ends"]
    assert handles[3].wait() == [["a", "b begins", "c", "d begins", "e", "b ends", "d ends"]]


def test_an_async_call_sees_what_later_calls_do(local: Cluster) -> None:
    group = Doer.create_group().launch(local)
    polling = group.poll()
    assert not polling.done()
    group.stop()
    assert polling.wait() == ["stopped"]
    channel = local.create_channel("c")
    getting = [group.get(channel, 2), group.get(channel, 1)]
    for item in range(3):
        channel.put(item)
    assert [handle.wait() for handle in getting] == [[[0, 1]], [[2]]]


def test_the_event_loop_of_a_worker_ends_with_its_cluster() -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        Doer.create_group().launch(cluster, name="doer").get(cluster.create_channel("c"), 0).wait()
        (process,) = cluster._backend._processes["doer"]
        loop = process._coroutines._loop
    assert loop.is_closed(), "it would hold three files until it is collected"
    left_open = WorkerLoop(ThreadTurn(), lambda: False)
    for end in (left_open._ssock, left_open._csock):  # they may be collected before it
        end.close()
    left_open.__del__()


def test_async_calls_wait_for_those_before_them_if_too_many_are_under_way(local: Cluster) -> None:
    for options, most in (({"max_concurrency": 2}, 2), ({}, 6)):
        group = Doer.create_group().launch(local, ONE, f"most-{most}", **options)
        handles = [group.count_inside() for _ in range(6)]
        assert group.release().wait() == [most]
        assert [handle.wait() for handle in handles] == [[most]] * 6


def test_calls_in_several_threads_may_wait_for_each_other(local: Cluster) -> None:
    group = Blocker.create_group().launch(local, name="two", max_concurrency=2)
    channel = local.create_channel("c")
    getting = group.get(channel)
    group.put_later(channel)
    assert getting.wait() == ["late"]


def test_what_yields_is_refused(local: Cluster) -> None:
    group = Doer.create_group().launch(local)
    with pytest.raises(NotImplementedError, match=r"Doer.stream\(\): it yields its results.*put each result into a channel"):
        group.stream()
    with pytest.raises(WorkerError, match=r"Doer.lazily\(\): it yields its results"):
        group.lazily().wait()
    with pytest.raises(WorkerError, match=r"Doer.disguised\(\): it returned a coroutine, but is no `async def`"):
        group.disguised().wait()


def test_handles_reduce_durations_and_are_awaited(local: Cluster) -> None:
    class Call:
        def __init__(self, seconds: float, timers: dict[str, float]) -> None:
            self.outcome = Outcome(value=seconds, seconds=seconds, timers=timers)
            self.label = "g[0].work()"

        def wait(self, timeout: float | None = None) -> Outcome:
            return self.outcome

        def done(self) -> bool:
            return True

    calls: Any = [Call(1.0, {"load": 0.5}), Call(3.0, {"load": 1.5, "save": 1.0})]
    handle: Handle[float] = Handle("g.work()", calls, 1.0)
    assert [handle.consume_duration(kind) for kind in ("max", "min", "mean")] == [3.0, 1.0, 2.0]
    reduced, ranks = handle.consume_durations("mean", return_per_rank=True)
    assert reduced == handle.consume_durations("mean") == {"work": 2.0, "load": 1.0, "save": 1.0}
    assert ranks == [{"work": 1.0, "load": 0.5}, {"work": 3.0, "load": 1.5, "save": 1.0}]
    assert asyncio.run(handle.async_wait()) == [1.0, 3.0]
    with pytest.raises(UnknownName, match="no reduction 'median'"):
        handle.consume_duration("median")  # type: ignore[arg-type]


def test_more_handles_may_be_awaited_than_the_event_loop_has_threads() -> None:
    class Call:
        def __init__(self, label: str, opens: threading.Event, waits_for: threading.Event) -> None:
            self.label, self._opens, self._waits_for = label, opens, waits_for

        def wait(self, timeout: float | None = None) -> Outcome:
            self._opens.set()
            assert self._waits_for.wait(60.0), "the other one is not waited for"
            return Outcome(value=self.label, seconds=0.0)

    first, second = threading.Event(), threading.Event()
    calls: Any = [Call("a", first, second), Call("b", second, first)]

    async def main() -> list[list[str]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.gather(*(Handle[str]("g.work()", [call], 60.0).async_wait() for call in calls))

    assert asyncio.run(main()) == [["a"], ["b"]]


def test_views(local: Cluster) -> None:
    group = Doer.create_group().launch(local, TWO, "pair")
    assert [len(group.execute_on(*ranks).note("x").wait()) for ranks in ((0,), (0, 1), ([1, 0],), ((0, 1),))] == [1, 2, 2, 2]
    assert [info.rank for info in group.execute_on(1, 0).worker_infos] == [1, 0]
    with pytest.raises(UnknownName, match="no rank 2"):
        group.execute_on(0, 2)
    with pytest.raises(UnknownName, match="names no rank"):
        group.execute_on()


def test_a_group_is_found_by_its_name(local: Cluster) -> None:
    group = Doer.create_group().launch(local, name="doer")
    assert WorkerGroup.from_group_name(Doer, "doer") is local.group("doer") is group
    assert WorkerGroup.from_group_name(Worker, "doer") is group
    with pytest.raises(UnknownName, match=r"group 'doe': it was not launched. Did you mean 'doer'\?"):
        WorkerGroup.from_group_name(Doer, "doe")
    with pytest.raises(ConfigError, match="expected workers of Blocker, found Doer"):
        WorkerGroup.from_group_name(Blocker, "doer")


def test_launches_refuse_what_they_do_not_know(local: Cluster) -> None:
    class Named(Worker):
        def call(self) -> None: ...

    with pytest.raises(DuplicateName, match=r"Named.call\(\) can't be called on a group"):
        Named.create_group().launch(local)
    with pytest.raises(UnknownName, match=r"no option 'max_concurency'. Did you mean 'max_concurrency'\?"):
        Doer.create_group().launch(local, max_concurency=2)
    with pytest.raises(UnknownName, match=r"no option 'catch_system_failure'. .*Supervisor"):
        Doer.create_group().launch(local, catch_system_failure=True)
    with pytest.raises(ConfigError, match="expected at least 1, found 0"):
        LaunchOptions.read({"max_concurrency": 0}, "g")
    assert Doer.create_group().launch(local).world_size == 1


def test_a_group_without_a_placement_has_a_process_on_each_accelerator() -> None:
    with Cluster(cluster_cfg={"backend": "local", "virtual_accelerators": {"count": 3}}) as cluster:
        group = Doer.create_group().launch(cluster)
        assert [info.devices for info in group.worker_infos] == [(0,), (1,), (2,)]


def test_a_failed_child_fails_its_worker(local: Cluster) -> None:
    class Parent(Worker):
        def start(self) -> str:
            child = self.start_child(fail, "gone")
            child.wait()
            return child.name

        def idle(self) -> None: ...

    group = Parent.create_group().launch(local, name="parent")
    with pytest.raises(WorkerError, match=r"parent\[0\] failed in start\(\): child parent:0:0 \(fail\) failed: ValueError: gone"):
        group.start().wait()
    with pytest.raises(WorkerError, match=r"child parent:0:0"):
        group.idle().wait()


def test_a_child_is_stopped_where_it_waits(local: Cluster) -> None:
    class Parent(Worker):
        def start(self) -> tuple[str, bool]:
            child = self.start_child(wait_for_ever, self.group_name, name="sleeper")
            self.recv(self.group_name, child.rank)
            child.stop()
            return child.name, child.done()

    assert Parent.create_group().launch(local, name="parent").start().wait() == [("parent:0:0", True)]


def fail(text: str) -> None:
    raise ValueError(text)


def wait_for_ever(group: str) -> None:
    me: Worker = Worker.current_worker
    me.send("here", group, 0)
    me.recv(group, 0)


def test_ranks_as_libraries_read_them() -> None:
    nodes = [Node(rank=rank, cores=8, accelerators=2, virtual=False, accelerator_type="NV_GPU") for rank in (0, 1, 2)]
    plans = FlexiblePlacementStrategy([[1], [4], [5]]).plan(Inventory(nodes), place="g")
    found = [rank_variables("g", plan, plans) for plan in plans]
    assert [(v["RANK"], v["NODE_RANK"], v["CLUSTER_NODE_RANK"]) for v in found] == [
        ("0", "0", "0"),
        ("1", "1", "2"),
        ("2", "1", "2"),
    ]
    assert [(v["NODE_LOCAL_RANK"], v["NODE_LOCAL_WORLD_SIZE"]) for v in found] == [("0", "1"), ("0", "2"), ("1", "2")]
    assert {(v["LOCAL_RANK"], v["LOCAL_WORLD_SIZE"], v["WORLD_SIZE"], v["ACCELERATOR_TYPE"]) for v in found} == {
        ("0", "1", "3", "NV_GPU")
    }
    shared = [rank_variables("g", plan, plans, isolated=False) for plan in plans]
    assert [(v["LOCAL_RANK"], v["LOCAL_WORLD_SIZE"]) for v in shared] == [("1", "1"), ("0", "2"), ("1", "2")]
    assert [plan_fields("g", plan, plans)["accelerator_type"] for plan in plans] == ["NV_GPU"] * 3
    on_node = NodePlacementStrategy([1, 1]).plan(Inventory(nodes), place="g")
    variables = rank_variables("g", on_node[1], on_node, isolated=False)
    assert (variables["LOCAL_RANK"], variables["ACCELERATOR_TYPE"], variables["WORKER_NAME"]) == ("1", "NO_ACCEL", "g:1")


def test_a_worker_on_a_robot_knows_its_configuration() -> None:
    arm = {"node_rank": 0, "model": "ur5e"}
    groups = [{"label": "arms", "node_ranks": 0, "hardware": {"type": "SimulatedArm", "configs": [arm]}}]

    class Driver(Worker):
        def model(self) -> str:
            return self.hardware_infos[0].config.model

    with Cluster(cluster_cfg={"backend": "local", "node_groups": groups}) as cluster:
        on_arm = PackedPlacementStrategy(0, 0, node_group="arms")
        assert Driver.create_group().launch(cluster, on_arm).model().wait() == ["ur5e"]


def test_one_piece_of_code_runs_at_a_time() -> None:
    coroutines = Coroutines(ThreadTurn(), "worker async")
    inside, most, done = 0, 0, threading.Event()

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.0005)
        inside -= 1

    async def call() -> None:
        for _ in range(50):
            work()
            await asyncio.sleep(0)
        done.set()

    coroutines.begin(call)
    for _ in range(50):
        with coroutines.between():
            work()
    assert done.wait(60.0)
    assert most == 1


def test_the_trace_shows_what_happens_within_an_async_call(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "w.0")
    timers = recorder.timers("w[0]")

    async def call(name: str) -> Outcome:
        with timers(f"timer of {name}"):
            await asyncio.sleep(0.01)
        recorder.record("get", "w[0]", f"get of {name}", "", time.monotonic_ns() - 1_000_000, waited=1_000_000)
        return Outcome(value=name, seconds=0.0)

    async def main() -> None:
        await asyncio.gather(*[recorder.call_async("w[0]", name, lambda name=name: call(name)) for name in ("one", "two")])
        await recorder.call_async("w[0]", "three", lambda: call("three"))

    asyncio.run(main())
    recorder.close()
    found = list(spans(tmp_path))
    assert {span.name: span.within for span in found if span.kind != "call"} == {
        f"{kind} of {name}": name for kind in ("timer", "get") for name in ("one", "two", "three")
    }
    calls = {span.name: span for span in found if span.kind == "call"}
    assert {name: span.waited for name, span in calls.items()} == {"one": 1_000_000, "two": 1_000_000, "three": 1_000_000}
    assert calls["one"].thread != calls["two"].thread
    assert calls["three"].thread in (calls["one"].thread, calls["two"].thread)


def test_turns_go_round_in_order() -> None:
    turn, order = ThreadTurn(), []

    def take(name: int) -> None:
        with turn:
            order.append(name)

    with turn:
        threads = [threading.Thread(target=take, args=(name,)) for name in range(5)]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: turn._next == number + 2)  # it is in line
    for thread in threads:
        thread.join(60.0)
    assert order == [0, 1, 2, 3, 4]


def test_infos_have_addresses() -> None:
    info = WorkerInfo(group="g", rank=2, devices=(), threads=1, pid=1)
    assert (info.label, info.address.get_name()) == ("g[2]", "g:2")
    assert issubclass(UnknownName, RLinfError)


def test_a_worker_that_names_itself_is_named_once() -> None:
    info = WorkerInfo(group="env", rank=1, devices=(), threads=1, pid=1)

    def broken(place: str) -> None:
        raise RLinfError(place, "it fell off")

    for place, said in (("env[1]", "it fell off"), ("env[2]", r"RLinfError: env\[2\]: it fell off")):
        with pytest.raises(WorkerError, match=rf"^env\[1\] failed in step\(\): {said}(\n|$)"):
            checked(perform(broken, (place,), {}), info, "step")

import asyncio
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rlinf.core import gather
from rlinf.core.cluster import futures
from rlinf.core.errors import (
    ChannelClosed,
    ConfigError,
    DeadlineExceeded,
    Deadlock,
    DuplicateName,
    RLinfError,
    UnknownName,
    WorkerError,
)
from rlinf.core.testing.channel import ChannelContract
from rlinf.core.testing.cluster import ClusterContract
from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Worker, WorkerGroup
from rlinf.scheduler.backends.local.cooperative import CooperativeScheduler


class Peer(Worker):
    def get(self, channel: Channel, key: Any = "default", timeout: float | None = None) -> Any:
        return channel.get(key=key, timeout=timeout)

    def put(self, channel: Channel, *items: Any, key: Any = "default") -> int:
        for item in items:
            channel.put(item, key=key)
        return len(items)

    def ping(self, mine: Channel, theirs: Channel, count: int) -> list[int]:
        seen = []
        for i in range(count):
            theirs.put((self.rank, i))
            seen.append(mine.get())
        return seen

    def swap(self, log: list[int], mine: Channel, theirs: Channel, count: int) -> None:
        for i in range(count):
            log.append(i)
            theirs.put(i)
            mine.get()

    def nap(self, started: list[int], seconds: float) -> None:
        started.append(self.rank)
        time.sleep(0.0 if self.rank else seconds)

    def fail(self) -> None:
        raise ValueError("broken")

    def critical(self, log: list[str], channel: Channel) -> None:
        with self.device_lock:
            log.append(f"{self.group_name} in")
            channel.put(0)
            channel.get(key="go")
            log.append(f"{self.group_name} out")


def opened_below(folder: Path) -> list[str]:
    opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return [path for path in opened if path.startswith(str(folder.resolve()))]


def test_contracts(local_cluster: Cluster) -> None:
    ClusterContract(cluster=local_cluster, two=NodePlacementStrategy([0, 0])).run()
    ChannelContract(cluster=local_cluster).run()
    ChannelContract(cluster=local_cluster, prefix="near", near=True).run()


def test_deadlock_is_raised_at_once_with_the_wait_graph(local_cluster: Cluster) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer", placement_strategy=NodePlacementStrategy([0, 0]))
    channel = local_cluster.create_channel("letters")
    start = time.monotonic()
    handle = group.get(channel, "k")
    with pytest.raises(Deadlock) as caught:
        handle.wait()
    assert time.monotonic() - start < 40.0, "before the cluster's timeout_s"
    text = str(caught.value)
    assert "for an item (channel 'letters', key 'k')" in text
    assert "driver has waited 0 s for peer[0].get() to return" in text
    channel.put("a", key="k")
    channel.put("b", key="k")
    assert handle.wait() == ["a", "b"]


def test_a_driver_that_waits_alone_is_a_deadlock_and_with_a_timeout_a_deadline(local_cluster: Cluster) -> None:
    channel = local_cluster.create_channel("letters")
    with pytest.raises(Deadlock, match=r"driver has waited \d s for an item"):
        channel.get()
    with pytest.raises(DeadlineExceeded, match="channel 'letters', key 'default': driver waits for an item in vain: every other"):
        channel.get(timeout=30.0)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0, 1e12])
def test_a_timeout_that_no_clock_reaches_is_refused(local_cluster: Cluster, timeout: float) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer", placement_strategy=NodePlacementStrategy([0, 0]))
    channel = local_cluster.create_channel("letters")
    handle = group.put(channel, 1)
    waits: list[Callable[[], Any]] = [
        lambda: handle.wait(timeout),
        lambda: group.execute_on(0).put(channel).wait(timeout),
        lambda: gather(handle, timeout=timeout),
        lambda: channel.put(1, timeout=timeout),
        lambda: channel.get(timeout=timeout),
        lambda: channel.get_batch(9, timeout=timeout),
        lambda: channel.get(async_op=True).wait(timeout),
        lambda: Channel.connect("nothing", timeout=timeout),
    ]
    for wait in waits:
        with pytest.raises(ConfigError, match=r"timeout: expected 0 to 2000000 seconds, found"):
            wait()
    with pytest.raises(WorkerError, match=r"ConfigError: .*timeout: expected 0 to 2000000 seconds, found"):
        group.get(channel, timeout=timeout).wait()


def test_a_wait_ends_with_the_turn_in_which_its_deadline_falls(local_cluster: Cluster) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer", placement_strategy=NodePlacementStrategy([0] * 4))
    started: list[int] = []
    handle = group.nap(started, 3.0)
    with pytest.raises(
        DeadlineExceeded, match=r"driver waited 1 s for it to return in vain; noticed \d+\.\d s late, as peer\[0\] ran on"
    ):
        group.execute_on(3).nap(started, 0.0).wait(1.0)
    assert started == [0]
    handle.wait()
    assert started == [0, 1, 2, 3]


def test_a_workers_own_timeout_ends_before_a_deadlock(local_cluster: Cluster) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer")
    channel = local_cluster.create_channel("letters")
    with pytest.raises(
        WorkerError, match=r"DeadlineExceeded: channel 'letters', key 'default': peer\[0\] waits for an item in vain"
    ):
        group.get(channel, timeout=9.0).wait()


def test_the_first_failure_explains_why_nothing_can_run(local_cluster: Cluster) -> None:
    waiter = Peer.create_group().launch(local_cluster, name="waiter")
    broken = Peer.create_group().launch(local_cluster, name="broken")
    channel = local_cluster.create_channel("letters")
    with pytest.raises(WorkerError, match=r"broken\[0\] failed in fail\(\): ValueError: broken"):
        gather(waiter.get(channel), broken.fail(), timeout=60.0)
    with pytest.raises(WorkerError, match=r"broken\[0\] failed in fail\(\): ValueError: broken"):
        gather(waiter.get(channel, timeout=9.0), broken.fail(), timeout=60.0)
    broken.fail()
    with pytest.raises(WorkerError, match=r"broken\[0\] failed in fail\(\): ValueError: broken"):
        waiter.get(channel).wait()


def test_the_order_of_a_run_is_always_the_same() -> None:
    def run() -> list[Any]:
        with Cluster(cluster_cfg={"backend": "local"}) as cluster:
            group = Peer.create_group().launch(cluster, name="peer", placement_strategy=NodePlacementStrategy([0] * 3))
            channel = cluster.create_channel("ring")
            return group.ping(channel, channel, 20).wait()

    assert run() == run()


def test_how_often_the_driver_looks_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as soon as what it waits for has ended: so many turns later the others are always equally far."""

    def turns(slice_s: float) -> list[int]:
        monkeypatch.setattr(futures, "SLICE_S", slice_s)
        found: list[int] = []
        with Cluster(cluster_cfg={"backend": "local", "virtual_accelerators": {"count": 2}}) as cluster:
            groups = [Peer.create_group().launch(cluster, name=name) for name in ("short", "long")]
            channels = [[cluster.create_channel(f"{name}{rank}") for rank in (0, 1)] for name in ("short", "long")]
            log: list[int] = []
            short, long = (
                [group.execute_on(rank).swap(log if count > 9 else [], ends[rank], ends[1 - rank], count) for rank in (0, 1)]
                for group, ends, count in zip(groups, channels, (9, 40), strict=True)
            )
            for calls in (short, long):
                futures.gather_within(60.0, calls, remedy="", beside=long)
                found.append(len(log))
        return found

    expected = turns(futures.SLICE_S)
    assert expected[0] < expected[1] == 80
    assert turns(0.0) == expected


def test_a_device_is_held_by_one_group_at_a_time(local_cluster: Cluster) -> None:
    on_first = FlexiblePlacementStrategy([[0]])
    one = Peer.create_group().launch(local_cluster, name="one", placement_strategy=on_first)
    two = Peer.create_group().launch(local_cluster, name="two", placement_strategy=on_first)
    channel = local_cluster.create_channel("entered")
    log: list[str] = []
    handles = [one.critical(log, channel), two.critical(log, channel)]
    channel.get()
    assert log == ["one in"]
    with pytest.raises(DeadlineExceeded):
        channel.get(timeout=0.1)
    channel.put(0, key="go")
    channel.put(0, key="go")
    gather(*handles, timeout=60.0)
    assert log == ["one in", "one out", "two in", "two out"]


def test_await_and_durations(local_cluster: Cluster) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer", placement_strategy=NodePlacementStrategy([0]))
    channel = local_cluster.create_channel("letters")

    async def main() -> list[int]:
        return await group.call(Peer.put, channel, "a", "b")

    assert asyncio.run(main()) == [2]
    handle = group.get(channel)
    assert handle.label == "peer.get()"
    (seconds,) = handle.durations()
    assert 0 <= seconds < 60
    assert handle.done()


def test_names_and_misuse(local_cluster: Cluster) -> None:
    group = Peer.create_group().launch(local_cluster, name="peer")
    with pytest.raises(UnknownName, match=r"peer.putt: Peer has no public method 'putt'. Did you mean 'put'\?"):
        group.putt()
    with pytest.raises(AttributeError, match="private"):
        group._context()
    with pytest.raises(UnknownName, match="no rank 4"):
        group.execute_on([0, 4])
    with pytest.raises(DuplicateName):
        Peer.create_group().launch(local_cluster, name="peer")
    with pytest.raises(ConfigError, match="can't be the name of a group"):
        Peer.create_group().launch(local_cluster, name="a/b")
    with pytest.raises(ConfigError, match="group '7': this can't be the name of a group"):
        Peer.create_group().launch(local_cluster, name=cast("Any", 7))
    with pytest.raises(ConfigError, match=r"group 'q': expected a placement strategy, found '0-1'\. Pass one, such as Packed"):
        Peer.create_group().launch(local_cluster, name="q", placement_strategy=cast("Any", "0-1"))
    local_cluster.create_channel("c")
    with pytest.raises(DuplicateName):
        local_cluster.create_channel("c")
    with pytest.raises(UnknownName, match=r"Did you mean 'peer'\?"):
        local_cluster.create_channel("d", near="peeer")


def test_shutdown_ends_blocked_workers_and_is_idempotent() -> None:
    cluster = Cluster(cluster_cfg={"backend": "local"})
    group = Peer.create_group().launch(cluster, name="peer")
    handle = group.get(cluster.create_channel("letters"))
    assert not handle.done()
    cluster.shutdown()
    cluster.shutdown()
    with pytest.raises((WorkerError, ChannelClosed)) as caught:
        handle.wait()
    assert "shut down" in str(caught.value)
    with pytest.raises(RLinfError, match="shut down"):
        Peer.create_group().launch(cluster, name="late")


def test_each_worker_writes_its_own_log(tmp_path: Path) -> None:
    class Talker(Worker):
        def talk(self) -> None:
            self.log_info(f"hello from {self.rank}")

    with Cluster(cluster_cfg={"backend": "local", "log_dir": str(tmp_path)}) as cluster:
        group = Talker.create_group().launch(cluster, name="talker", placement_strategy=NodePlacementStrategy([0, 0]))
        group.talk().wait()
    for rank in (0, 1):
        assert f"hello from {rank}" in (tmp_path / "worker_logs" / "talker" / f"rank_{rank}.log").read_text()


def test_an_interrupted_launch_closes_the_logs_of_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Cluster(cluster_cfg={"backend": "local", "log_dir": str(tmp_path)}) as cluster:
        monkeypatch.setattr(CooperativeScheduler, "join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Peer.create_group().launch(cluster, name="cut", placement_strategy=NodePlacementStrategy([0, 0]))
        assert not opened_below(tmp_path)
        monkeypatch.undo()


def test_a_launch_that_fails_closes_the_logs_of_its_workers(tmp_path: Path) -> None:
    class Fragile(Worker):
        def __init__(self) -> None:
            super().__init__()
            raise ValueError("broken")

    with Cluster(cluster_cfg={"backend": "local", "log_dir": str(tmp_path)}) as cluster:
        with pytest.raises(WorkerError, match="broken"):
            Fragile.create_group().launch(cluster, name="fragile", placement_strategy=NodePlacementStrategy([0, 0]))
        assert not opened_below(tmp_path)
    assert "broken" in (tmp_path / "worker_logs" / "fragile" / "rank_0.log").read_text()


def test_a_channel_can_be_created_without_naming_its_cluster() -> None:
    with Cluster(cluster_cfg={"backend": "local"}):
        channel = Channel.create("numbers")
        channel.put(1)
        assert channel.get() == 1
    with pytest.raises(RLinfError, match=r"no running cluster\. Make one"):
        Channel.create("more")


def test_a_launch_that_fails_leaves_nobody_waiting(local_cluster: Cluster) -> None:
    """Else the next group of that name could lose its first message to one of the last."""

    class Early(Worker):
        def __init__(self, fails: bool) -> None:
            super().__init__()
            if fails and self.rank:
                raise ValueError("broken")
            if fails:
                self.device_lock.acquire()
                self.recv("peer", 0)

        def hear(self) -> Any:
            with self.device_lock:
                return self.recv("peer", 0)

    class Sender(Worker):
        def tell(self, text: str) -> None:
            self.send(text, "early", 0)

    Sender.create_group().launch(local_cluster, name="peer", placement_strategy=FlexiblePlacementStrategy([[0]]))
    on_both = FlexiblePlacementStrategy([[0], [1]])
    with pytest.raises(WorkerError, match=r"early\[1\] failed in __init__\(\): ValueError: broken"):
        Early.create_group(True).launch(local_cluster, name="early", placement_strategy=on_both)
    early = Early.create_group(False).launch(local_cluster, name="early", placement_strategy=on_both)
    local_cluster.group("peer").tell("first").wait()
    assert early.execute_on(0).hear().wait() == ["first"]


def test_devices_of_a_group_that_is_shut_down_go_to_the_next_in_line(local_cluster: Cluster) -> None:
    class Keeper(Worker):
        def take(self) -> str:
            self.device_lock.acquire()
            return self.group_name

    on_first = FlexiblePlacementStrategy([[0]])
    one, two = (Keeper.create_group().launch(local_cluster, name=name, placement_strategy=on_first) for name in ("one", "two"))
    one.take().wait()
    taken = two.take()
    assert not taken.done()
    one.shutdown()
    assert taken.wait() == ["two"]


def test_workers_that_wait_for_each_others_calls_are_a_circle(local_cluster: Cluster) -> None:
    class Caller(Worker):
        def ask(self, other: str) -> None:
            WorkerGroup.from_group_name(Caller, other).ask(self.group_name).wait()

    one, _ = (Caller.create_group().launch(local_cluster, name=name) for name in ("one", "two"))
    with pytest.raises(Deadlock, match=r"a cycle: one\[0\] → two\[0\] → one\[0\]") as caught:
        one.execute_on(0).ask("two").wait()
    assert "driver has waited 0 s for one[0].ask() to return" in str(caught.value)


def test_a_configuration_that_is_no_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^cluster: expected a section, found 'local'"):
        Cluster(cluster_cfg="local")  # type: ignore[arg-type]

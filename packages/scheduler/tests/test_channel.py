"""Channels as workers use them, on both back-ends."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf.core import gather
from rlinf.core.errors import ChannelClosed, ConfigError, Deadlock, DuplicateName, EndOfStream, UnknownName, WorkerError
from rlinf.core.testing.channel import ChannelContract
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.transport.encoding import Unpicklable

TWO = NodePlacementStrategy([0, 0])
BACKENDS = ["local", pytest.param("ray", marks=pytest.mark.ray)]


@pytest.fixture(scope="module", params=BACKENDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(cluster_cfg={"backend": request.param, "timeout_s": 60.0}) as made:
        yield made


@pytest.fixture(scope="module")
def users(cluster: Cluster) -> Any:
    return User.create_group().launch(cluster, name="user", placement_strategy=TWO)


class User(Worker):
    def create(self, name: str, maxsize: int = 0, items: int = 0, **options: Any) -> Channel:
        channel = Channel.create(name, maxsize, **options)
        for i in range(items):
            channel.put((self.rank, i))
        return channel

    def connect(self, name: str, timeout: float | None = None) -> str:
        return Channel.connect(name, self, timeout=timeout).get()

    def own(self, name: str) -> str:
        made = self.create_channel(name, maxsize=2)
        made.put("from its own method")
        return self.connect_channel(name).get()

    def each_key(self, channel: Channel, keys: list[str]) -> list[Any]:
        for key in keys:
            channel.put((self.rank, key), key=key)
        return [channel.get(key) for key in keys]

    def in_threads(self, source: Channel, target: Channel, count: int) -> int:
        def move() -> None:
            for item in source:
                target.put(item)

        threads = [threading.Thread(target=move) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count

    async def awaited(self, source: Channel, target: Channel) -> int:
        total = 0
        async for item in source:
            await target.put(item + 1, async_op=True)
            total += item
        return total

    def lock(self) -> None:
        self.send(threading.Lock(), "user", 0)

    def pipeline(self, source: Channel, target: Channel, ahead: int) -> None:
        works = [source.get(async_op=True) for _ in range(ahead)]
        while True:
            works.append(source.get(async_op=True))
            try:
                target.put(works.pop(0).wait(), async_op=True)
            except EndOfStream:
                target.close()
                return


def test_contract(cluster: Cluster) -> None:
    ChannelContract(cluster=cluster, prefix="plain").run()
    ChannelContract(cluster=cluster, prefix="near", near=True).run()
    ChannelContract(cluster=cluster, prefix="each", options={"distributed": True}).run()


def test_a_worker_creates_and_anybody_connects(cluster: Cluster, users: Any) -> None:
    waiting = users.execute_on(1).connect("early")
    (made,) = users.execute_on(0).create("early", 3).wait()
    made.put("it is here")
    assert waiting.wait() == ["it is here"]
    assert made.maxsize == 3
    (near,) = users.execute_on(0).create("near-me", items=2, local=True).wait()
    (other,) = users.execute_on(0).create("near-others", items=1, near="user").wait()
    assert [near.get(), near.get(), other.get()] == [(0, 0), (0, 1), (0, 0)]
    assert users.execute_on(1).own("mine").wait() == ["from its own method"]
    assert Channel.connect("mine").name == "mine"
    with pytest.raises(DuplicateName, match="channel 'early'"):
        Channel.create("early")
    with pytest.raises(WorkerError, match=r"DuplicateName: channel 'early': this cluster has a channel of that name"):
        users.execute_on(1).create("early").wait()
    with pytest.raises(WorkerError, match=r"UnknownName: channel 'erly': user\[1\] .*Did you mean 'early'\?"):
        users.execute_on(1).connect("erly", 0.2).wait()
    with pytest.raises(UnknownName, match=r"channel 'nar-me': driver .*Did you mean 'near-me'\?"):
        Channel.connect("nar-me", timeout=0.2)


def test_keys_where_they_are_used(cluster: Cluster, users: Any) -> None:
    channel = cluster.create_channel("keyed", distributed=True)
    assert channel.distributed
    found = users.execute_on(0).each_key(channel, ["a", "b"]).wait() + users.execute_on(1).each_key(channel, ["c"]).wait()
    assert found == [[(0, "a"), (0, "b")], [(1, "c")]]
    channel.put("from the driver", key="a")
    assert channel.get("a") == "from the driver"


def test_a_worker_works_ahead(cluster: Cluster, users: Any) -> None:
    for turn in range(20):  # from the second on everything is warm, and the worker is well ahead when it closes
        source, target = (cluster.create_channel(f"{name}{turn}", maxsize=4, near="user") for name in ("in", "out"))
        done = users.execute_on(0).pipeline(source, target, 3)
        puts = [source.put(i, async_op=True) for i in range(20)]
        first = [target.get() for _ in range(12)]
        gather(*puts, timeout=60.0)
        source.close()
        assert first + list(target) == list(range(20))
        done.wait()


def test_async_methods(cluster: Cluster, users: Any) -> None:
    source, target = cluster.create_channel("numbers"), cluster.create_channel("sums")
    handle = users.awaited(source, target)
    for i in range(50):
        source.put(i)
    source.close()
    assert sum(handle.wait()) == sum(range(50))
    assert sorted(target.get() for _ in range(50)) == list(range(1, 51))


def test_a_failed_put_is_told_by_its_handle(cluster: Cluster) -> None:
    channel = cluster.create_channel("over")
    channel.close()
    with pytest.raises(ChannelClosed, match=r"driver can't get room: closed by driver"):
        channel.put(0, async_op=True).wait()

    async def main() -> None:
        async for _ in channel:
            raise AssertionError("it has no items")

    asyncio.run(main())


@pytest.mark.parametrize("cluster", [BACKENDS[1]], indirect=True)
def test_threads_of_a_worker(cluster: Cluster, users: Any) -> None:
    source, target = cluster.create_channel("in", near="user"), cluster.create_channel("out", maxsize=5)
    done = users.execute_on(0).in_threads(source, target, 4)
    for i in range(200):
        source.put(i)
    source.close()
    assert sorted(target.get() for _ in range(200)) == list(range(200))
    assert done.wait() == [4]


def test_the_local_back_end_knows_that_nobody_can_put() -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:
        channel = cluster.create_channel("empty")
        work = channel.get(async_op=True)
        with pytest.raises(Deadlock, match=r"driver has waited \d s for an item"):
            work.wait()
        channel.put(1)
        assert work.wait() == 1


def test_the_order_on_the_local_back_end_is_always_the_same() -> None:
    def run() -> list[Any]:
        with Cluster(cluster_cfg={"backend": "local"}) as cluster:
            users = User.create_group().launch(cluster, name="user", placement_strategy=NodePlacementStrategy([0] * 3))
            source, target = cluster.create_channel("in", maxsize=2), cluster.create_channel("out")
            done = users.awaited(source, target)
            for i in range(30):
                source.put(i)
            source.close()
            return [done.wait(), [target.get() for _ in range(30)]]

    assert run() == run()


def test_what_can_not_be_put_is_told_with_its_channel() -> None:
    with Cluster(cluster_cfg={"backend": "local"}) as made:
        channel = Channel.create("c")
        problem = r"^channel 'c': an item can't be pickled: cannot pickle '_thread\.lock' object\. Send plain data"
        for put in (channel.put, channel.put_nowait):
            with pytest.raises(Unpicklable, match=problem):
                put({"deep": [threading.Lock()]})
            with pytest.raises(ConfigError, match=r"^channel 'c'\.put\(weight\): expected at least 0, found -1"):
                put(1, weight=-1)
        with pytest.raises(ConfigError, match=r"^channel 'c'\.get_batch\(target_weight\): expected at least 0, found -3"):
            channel.get_batch(-3)
        for use in (channel.put, channel.get_batch):
            with pytest.raises(ConfigError, match=r"^channel 'c': a key is hashable, found \[1\]\. Use a text"):
                use(1, key=[1])
        assert channel.empty()
        user = User.create_group().launch(made, name="user")
        with pytest.raises(WorkerError, match=r"Unpicklable: send to user\[0\].*: an item can't be pickled"):
            user.lock().wait()

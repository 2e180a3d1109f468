"""Workers without a cluster, and what a cluster injects."""

import asyncio
import os
import socket
import time
from typing import Any

import pytest

from rlinf.core import Worker, WorkerContext
from rlinf.core.errors import ConfigError, RLinfError, UnknownName
from rlinf.core.worker import injected
from rlinf.core.worker.context import CurrentWorker, WorkerAddress
from rlinf.core.worker.timers import timers_of_call


class Adder(Worker):
    """Calls no `super().__init__()`, as users' workers don't."""

    def __init__(self, base: int, *, scale: int = 1) -> None:
        self.base = base * scale
        self.rank_in_constructor = self.rank

    def add(self, x: int) -> int:
        return self.base + x


class Mailbox:
    """A messenger that remembers."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def send(self, item: Any, group: str, rank: int, *, tag: str = "", async_op: bool = False) -> None:
        self.items.append((item, group, rank, tag))

    def recv(self, group: str, rank: int, *, tag: str = "", timeout: float | None = None, async_op: bool = False) -> Any:
        return self.items.pop()


class Recorder:
    """A cluster that only writes down what it is asked."""

    def launch(self, spec: Any, *, name: str, placement_strategy: Any | None = None) -> Any:
        return spec.worker(*spec.args, **spec.kwargs), name, placement_strategy

    def handover_policy(self) -> None: ...

    def prepare(self, worker: type[Any], *, name: str, placement_strategy: Any | None = None) -> None: ...

    def create_channel(self, name: str, *, maxsize: int = 0, near: str | None = None) -> Any:
        raise NotImplementedError

    def shutdown(self) -> None: ...


def test_a_worker_alone_is_rank_zero_of_one() -> None:
    worker = Adder(1)
    assert (worker.group_name, worker.rank, worker.world_size, worker.devices) == ("alone", 0, 1, ())
    assert worker.add(2) == 3
    with worker.device_lock, worker.device_lock:
        worker.device_lock.acquire(timeout=1.0)
    worker.device_lock.release()


def test_a_worker_alone_has_nobody_to_talk_to() -> None:
    with pytest.raises(RLinfError, match=r"^send to actor\[1\]: this worker was built outside a cluster"):
        Adder(1).send("x", "actor", 1)
    with pytest.raises(RLinfError, match=r"^recv from actor\[0\]"):
        Adder(1).recv("actor", 0)


def test_the_context_is_there_before_the_constructor_and_gone_after() -> None:
    mailbox = Mailbox()
    with injected(WorkerContext(group="rollout", rank=2, world_size=3, devices=(4, 5), messenger=mailbox)):
        worker = Adder(1)
    assert worker.rank_in_constructor == 2
    assert (worker.group_name, worker.world_size, worker.devices) == ("rollout", 3, (4, 5))
    assert worker.log.name == "rlinf.worker.rollout.2"
    worker.send("weights", "actor", 1, tag="sync")
    assert mailbox.items == [("weights", "actor", 1, "sync")]
    assert worker.recv("actor", 1)[0] == "weights"
    assert Adder(1).rank == 0


def test_injection_ends_when_a_constructor_fails() -> None:
    with pytest.raises(TypeError), injected(WorkerContext(rank=5)):
        Adder()  # type: ignore[call-arg]
    assert Adder(1).rank == 0


def test_a_group_spec_carries_class_and_arguments() -> None:
    worker, name, strategy = Adder.create_group(2, scale=5).launch(Recorder(), placement_strategy="packed")
    assert isinstance(worker, Adder)
    assert (worker.base, name, strategy) == (10, "Adder", "packed")
    assert Adder.create_group(2).launch(Recorder(), name="adder")[1] == "adder"


def test_timers_add_up_until_they_are_read() -> None:
    worker = Adder(1)
    began = time.perf_counter()
    for _ in range(2):
        with worker.worker_timer("sleep"):
            time.sleep(0.01)
    with pytest.raises(ZeroDivisionError), worker.worker_timer("failed"):
        _ = 1 // 0
    times, most = worker.pop_execution_times(), time.perf_counter() - began
    assert set(times) == {"sleep", "failed"}
    assert 0.02 <= times["sleep"] < most
    assert worker.pop_execution_times() == {}


def test_two_workers_have_timers_of_their_own() -> None:
    first, second = Adder(1), Adder(2)
    with first.worker_timer("x"):
        pass
    assert second.pop_execution_times() == {}


def test_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rlinf"):
        Adder(1).log_info("hello")
        Adder(1).log_warning("careful")
        Adder(1).log_error("broken")
    assert [(r.levelname, r.message) for r in caplog.records] == [("INFO", "hello"), ("WARNING", "careful"), ("ERROR", "broken")]


class Napper(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.environment = "cart pole"  # a name of ours that a user may take

    @Worker.timer("nap")
    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @Worker.timer
    async def doze(self) -> str:
        await asyncio.sleep(0.01)
        return "rested"

    @Worker.timer()
    def fail(self) -> None:
        raise ZeroDivisionError


def test_a_decorated_method_is_timed_by_its_tag_or_its_name() -> None:
    worker, began = Napper(), time.perf_counter()
    assert (worker.nap(0.01), asyncio.run(worker.doze()), worker.nap.__name__) == (0.01, "rested", "nap")
    with pytest.raises(ZeroDivisionError):
        worker.fail()
    assert 0.01 <= worker.pop_execution_time("nap") < time.perf_counter() - began
    with pytest.raises(UnknownName, match=r"timer 'nap': it has not run since .* Known: doze, fail"):
        worker.pop_execution_time("nap")
    assert set(worker.pop_execution_times()) == {"doze", "fail"}


def test_timers_of_a_call_are_those_that_end_in_it() -> None:
    worker = Napper()
    worker.nap(0.0)
    with timers_of_call() as seconds:
        worker.nap(0.01)
        worker.nap(0.01)
    worker.nap(0.0)
    assert seconds["nap"] >= 0.02
    assert worker.pop_execution_time("nap") >= seconds["nap"]


def test_a_worker_alone_has_what_others_have() -> None:
    worker = Adder(1)
    assert worker.environment["RANK"] == worker.environment["LOCAL_RANK"] == "0"
    assert worker.environment["WORLD_SIZE"] == "1"
    assert worker.worker_address.get_name() == "alone:0"
    assert worker.worker_info.pid == os.getpid()
    assert (worker.accelerator_type, worker.has_accelerator, worker.hardware_infos, worker.node) == ("", False, (), 0)
    with socket.socket() as probe:
        probe.bind(("", worker.acquire_free_port()))
    assert worker.acquire_free_port(30000) <= 30000
    for ask in (lambda: worker.create_channel("c"), lambda: worker.connect_channel("c"), lambda: worker.start_child(print)):
        with pytest.raises(RLinfError, match="built outside a cluster"):
            ask()


def test_a_name_of_ours_may_be_taken() -> None:
    assert Napper().environment == "cart pole"


def test_addresses() -> None:
    worker = WorkerAddress("rollout", 2)
    child = worker.get_child_address(3)
    assert (worker.get_name(), child.get_name(), str(child)) == ("rollout:2", "rollout:2:3", "rollout:2:3")
    assert (child.get_parent_address(), worker.get_parent_address(), child.get_parent_rank()) == (worker, None, 2)
    assert WorkerAddress.from_name("rollout:2:3") == child
    assert sorted([WorkerAddress("b", 0), child, worker, WorkerAddress("rollout", 10)])[1:3] == [worker, child]
    for name in ("", ":0", "rollout:x", "rollout:-1"):
        with pytest.raises(ConfigError):
            WorkerAddress.from_name(name)
    with pytest.raises(ConfigError, match="at least 0"):
        WorkerAddress("rollout", -1)


@pytest.mark.parametrize(("kind", "real"), [("NV_GPU", True), ("NPU", True), ("VIRTUAL", False), ("", False)])
def test_virtual_accelerators_are_no_devices(kind: str, real: bool) -> None:
    class Placed(Worker):
        pass

    with injected(WorkerContext(group="g", accelerator_type=kind)):
        assert Placed().has_device is real


def test_the_current_worker_is_known_from_its_constructor_on() -> None:
    class Asker(Worker):
        def __init__(self) -> None:
            self.early = Worker.current_worker is self

    assert Worker.current_worker is None
    with injected(WorkerContext(group="g")):
        worker = Asker()
        Asker()
        assert Worker.current_worker is worker
    assert worker.early
    assert not Asker().early
    assert Worker.current_worker is None
    with CurrentWorker.running(worker):
        assert Worker.current_worker is worker


def test_the_names_that_users_know_are_understood() -> None:
    mailbox = Mailbox()
    with injected(WorkerContext(messenger=mailbox)):
        worker = Adder(1)
    worker.send("x", dst_group_name="actor", dst_rank=1)
    assert mailbox.items == [("x", "actor", 1, "")]
    assert worker.recv(src_group_name="actor", src_rank=1)[0] == "x"
    with pytest.raises(ConfigError, match=r"send\(\): expected a group and a rank"):
        worker.send("x", "actor")
    with pytest.raises(TypeError, match="unexpected keyword argument 'destination'"):
        worker.send("x", "actor", 0, destination=3)

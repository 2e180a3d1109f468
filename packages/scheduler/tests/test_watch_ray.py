"""What a run on Ray is doing, and what its errors say of it."""

import ctypes
import fcntl
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import becomes

from rlinf.core import gather
from rlinf.core.errors import DeadlineExceeded, WorkerError
from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Worker
from rlinf.scheduler.backends.ray._process import RayProcess
from rlinf.scheduler.failures import Failures
from rlinf.scheduler.watch.heartbeat import LOG
from rlinf.scheduler.watch.processes import state
from rlinf.scheduler.workers.logs import WORKERS
from rlinf.scheduler.workers.supervisor import Supervisor

pytestmark = pytest.mark.ray
SHARED = FlexiblePlacementStrategy([[0], [0], [0, 1]])


class Peer(Worker):
    def get(self, channel: Channel, timeout: float | None = None) -> Any:
        return channel.get(key="k", timeout=timeout)

    def exchange(self, mine: Channel, theirs: Channel) -> None:
        theirs.put(0)
        mine.get()
        mine.get()

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    def await_file(self, file: Path) -> int:
        while not file.exists():
            time.sleep(0.01)
        return self.rank

    def native(self, lock: Path) -> None:
        """Waits for a file's lock in C, without letting another thread run."""
        with lock.open() as file:
            while ctypes.PyDLL(None).flock(file.fileno(), fcntl.LOCK_EX):
                pass  # a signal came, such as the one that asks for stacks

    def hold(self, entered: Channel, leave: Channel | None) -> float:
        with self.device_lock, self.device_lock:
            at = time.monotonic()
            entered.put(self.rank)
            if leave is not None:
                leave.get()
            return at

    def want(self, seconds: float) -> None:
        self.device_lock.acquire(timeout=seconds)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    log_dir = tmp_path_factory.mktemp("logs")
    section = {
        "virtual_accelerators": {"count": 2},
        "timeout_s": 60.0,
        "log_dir": str(log_dir),
        "heartbeat_s": 1.0,
        "stopped_grace_s": 15.0,
    }
    with Cluster(cluster_cfg=section) as made:
        yield made


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Any:
    return Peer.create_group().launch(cluster, name="peer", placement_strategy=SHARED)


def until(cluster: Cluster, *texts: str) -> str:
    """The wait graph, once it has some texts: a process that was not run for a while is not in the first one as it should be."""
    deadline = time.monotonic() + 60.0
    while True:
        graph = re.sub(r"\d+ s\b", "N s", str(cluster.wait_graph()))
        if all(text in graph for text in texts):
            return graph
        assert time.monotonic() < deadline, graph
        time.sleep(0.05)


def test_a_stopped_worker_is_named_when_the_driver_waits_for_it_in_vain(
    cluster: Cluster, group: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    (pid,) = [info.pid for info in group.worker_infos if info.rank == 1]
    handle = group.await_file(tmp_path / "go on")
    until(cluster, "peer[0-2] have been running await_file()")

    def beats() -> list[str]:
        return [message for message in caplog.messages if "peer[1] does not answer: stopped" in message]

    started = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        becomes(lambda: state(pid), "T")
        (tmp_path / "go on").touch()
        with pytest.raises(DeadlineExceeded) as caught:
            handle.wait(timeout=4.0)
        while not beats():  # the driver did not run for a while, and then only this thread of it
            with pytest.raises(DeadlineExceeded):
                handle.wait(timeout=2.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(beats()) <= 1 + time.monotonic() - started, "one in a second"
    text = str(caught.value)
    assert re.search(r"peer\[1\]\.await_file\(\): not done after 4 s", text)
    assert f"peer[1] does not answer: stopped (state T), pid {pid}" in text
    (note,) = [note for note in caught.value.__notes__ if "What the workers run" in note]
    assert f"peer[1]: stopped (state T), pid {pid}" in note
    file = Path(note.rpartition("All stacks: ")[2])
    assert "thread MainThread" in file.read_text()
    assert handle.wait() == [0, 1, 2]
    started = time.monotonic()
    group.sleep(0.0).wait()
    assert time.monotonic() - started < 40.0, "before the cluster's timeout_s"


@pytest.mark.slow
def test_the_graph_has_circles_holders_and_stacks_from_outside(cluster: Cluster, group: Any, tmp_path: Path) -> None:
    here, there = cluster.create_channel("here"), cluster.create_channel("there", near="peer")
    others = Peer.create_group().launch(cluster, name="other", placement_strategy=NodePlacementStrategy([0, 0]))
    handles = [others.execute_on(0).exchange(here, there), others.execute_on(1).exchange(there, here)]
    within = "in exchange() for N s; last put by"
    until(cluster, "a cycle")
    file = (tmp_path / "lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    handles.append(group.execute_on(1).native(Path(file.name)))
    until(
        cluster,
        f"  other[0] has waited N s for an item (channel 'here', key 'default'), {within} other[1] N s ago\n",
        f"  other[1] has waited N s for an item (channel 'there', key 'default'), {within} other[0] N s ago\n",
        "  a cycle: other[0] → other[1] → other[0]",
        "peer[1] does not answer: ",
        " in native code that holds Python's lock",
    )
    expected = {
        "peer[1]": "native (scheduler/tests/test_watch_ray.py:",
        "other[1]": "exchange (scheduler/tests/test_watch_ray.py:",
        "peer[0]": "thread MainThread",
    }
    becomes(lambda: {who: text for who, text in expected.items() if text in cluster.stacks()[who]}, expected)
    file.close()
    here.put(0)
    there.put(0)
    gather(*handles, timeout=60.0)


def test_a_deadline_of_a_channel_says_who_put_last(cluster: Cluster, group: Any) -> None:
    channel = cluster.create_channel("letters")
    channel.put("a", key="k")
    assert group.execute_on(1).get(channel).wait() == ["a"]
    handle = group.execute_on(2).get(channel)
    until(cluster, "peer[2] has waited N s for an item")

    def in_a_worker() -> str:
        said = r"peer\[1\] waited 0.5 s for an item in vain; last put by driver \d+ s ago"
        with pytest.raises(WorkerError, match=said) as told:
            group.execute_on(1).get(channel, timeout=0.5).wait()
        return "\n".join(told.value.__notes__)

    def here() -> str:
        said = r"driver waited 1.5 s for an item in vain; last put by driver \d+ s ago"
        with pytest.raises(DeadlineExceeded, match=said) as told:
            channel.get(key="k", timeout=1.5)
        return str(told.value)

    shown = r"Who waits for whom:(\n.*)*\n  peer\[2\] has waited \d+ s for an item \(channel 'letters', key 'k'\)"
    deadline = time.monotonic() + 50.0
    for late in (in_a_worker, here):
        while not re.search(shown, text := late()):
            assert time.monotonic() < deadline, text  # a worker that does not run for a second is not heard of
    with pytest.raises(DeadlineExceeded) as poll:
        channel.get(key="k", timeout=0.1)
    assert "Who waits for whom" not in str(poll.value)
    channel.put("b", key="k")
    assert handle.wait() == ["b"]


def test_devices_are_held_in_turn_and_the_deadline_shows_the_line(cluster: Cluster, group: Any) -> None:
    entered, leave = cluster.create_channel("entered"), cluster.create_channel("leave")
    first = group.execute_on(0).hold(entered, leave)
    assert entered.get() == 0
    both = group.execute_on(2).hold(entered, None)
    until(cluster, "peer[2] has waited N s for the lock (device 0-1)")
    with pytest.raises(WorkerError) as caught:
        group.execute_on(1).want(0.5).wait()
    assert re.search(
        r"device 0: peer\[1\] waited 0.5 s for the lock in vain; device 0 is held by peer\[0\] \(for \d+ s, in hold\(\)\), "
        r"in line: peer\[2\] \(for \d+ s, in hold\(\)\)",
        str(caught.value),
    )
    leave.put(0)
    assert first.wait()[0] < both.wait()[0]
    assert entered.get() == 2
    group.execute_on(1).hold(entered, None).wait()


def test_the_first_start_of_a_process_is_not_said_to_be_another_one() -> None:
    launcher: Any = SimpleNamespace(start=lambda *_: None, condition=lambda _: "")
    plan: Any = SimpleNamespace(rank=0, devices=(), threads=1, node=0)
    spec: Any = None
    process = RayProcess(spec, "peer", plan, 60.0, Supervisor("restart"), Failures(lambda _: None), launcher)
    assert process.condition() == ""
    process._restarted.append(0.0)
    assert process.condition() == "its process is being started again"


@pytest.mark.slow
def test_a_worker_that_stays_stopped_is_taken_for_dead(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, WORKERS)
    again = Supervisor("restart", backoff_s=0.0)
    victim = Peer.create_group().launch(cluster, name="stopped", placement_strategy=NodePlacementStrategy([0]), supervisor=again)
    pid = victim.worker_infos[0].pid
    handle = victim.sleep(50.0)
    until(cluster, "stopped[0] has been running sleep()")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(
        WorkerError, match=rf"stopped\[0\] failed in sleep\(\): the process died \(killed, as pid {pid} was stopped"
    ):
        handle.wait()
    assert any(f"`kill -CONT {pid}` continues it; the run waits 15 s" in message for message in caplog.messages)
    assert victim.sleep(0.0).wait() == [0]
    assert victim.worker_infos[0].pid != pid


@pytest.mark.slow
def test_the_devices_of_a_killed_worker_are_given_to_the_next_in_line(cluster: Cluster, group: Any) -> None:
    again = Supervisor("restart", backoff_s=0.0)
    victim = Peer.create_group().launch(
        cluster, name="victim", placement_strategy=FlexiblePlacementStrategy([[0]]), supervisor=again
    )
    entered, leave = cluster.create_channel("entered by victim"), cluster.create_channel("never")
    held = victim.hold(entered, leave)
    entered.get()
    waiting = group.execute_on([0, 1]).hold(entered, None)
    deadline = time.monotonic() + 60.0
    while [who for who, peers in cluster.wait_graph().edges.items() if "victim[0]" in peers] != ["peer[0]", "peer[1]"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(victim.worker_infos[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"victim\[0\] failed in hold\(\): .*died"):
        held.wait()
    waiting.wait()
    assert {entered.get(), entered.get()} == {0, 1}
    victim.hold(entered, None).wait()

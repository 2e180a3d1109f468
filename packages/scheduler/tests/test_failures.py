"""What reaches the driver when a worker fails, and what is left then. A cluster for each end of a run."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from waiting import alive, eventually

from rlinf.core import gather
from rlinf.core.cluster import futures
from rlinf.core.errors import ChannelClosed, ConfigError, DeadlineExceeded, RLinfError, WorkerError
from rlinf.core.worker import idempotent
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.backends.ray import _backend, _call
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.watch.processes import state
from rlinf.scheduler.workers.supervisor import Supervisor

pytestmark = pytest.mark.ray
TWO = NodePlacementStrategy([0, 0])
SOON_S = 45.0
"""What the driver may take to learn of a failure."""


def strange() -> Any:
    """What can be pickled, and not be read again."""
    return type("Strange", (), {"__reduce__": lambda _: (__import__, ("no_such_module",))})()


class Mortal(Worker):
    def __init__(self, born: str = "") -> None:
        if born:
            with open(born, "a") as file:
                file.write(f"{os.getpid()}\n")
                file.flush()
            if len(Path(born).read_text().split()) == 3:
                os._exit(9)
        self.count = 0

    def pid(self) -> int:
        return os.getpid()

    def add(self) -> int:
        self.count += 1
        return self.count

    def sleep(self, seconds: float) -> str:
        self.log_info("good night")
        time.sleep(seconds)
        return "slept"

    @idempotent
    def nap(self, mark: Path) -> str:
        """Sleeps for ever the first time."""
        if not mark.exists():
            mark.touch()
            time.sleep(600.0)
        return "napped"

    def die(self, how: str) -> None:
        self.log_info("farewell")
        if how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[how])
        os._exit(int(how))

    def fail(self, after: float = 0.0) -> None:
        time.sleep(after)
        raise ValueError("broken")

    def leave(self) -> None:
        sys.exit(3)

    def fill(self) -> int:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
        return len(bytearray(16 << 30))

    def lock(self) -> Any:
        return threading.Lock()

    def strange(self) -> Any:
        return strange()

    def strange_error(self) -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                return __import__, ("no_such_module",)

        raise Odd("very")

    def get(self, channel: Channel) -> Any:
        return channel.get()

    def listen(self, group: str) -> Any:
        return self.recv(group, 0)

    def tell(self, group: str, item: Any) -> None:
        self.send(item, group, 0)

    def parent(self) -> list[int]:
        """Children: one in the process group, one in a session of its own, and a grandchild that has lost its parent."""
        script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
        orphan = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout)
        plain = subprocess.Popen(["sleep", "600"])
        alone = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return [plain.pid, alone.pid, orphan]


@contextlib.contextmanager
def new_cluster(**section: Any) -> Generator[Cluster]:
    with Cluster(cluster_cfg={"timeout_s": 60.0, **section}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with new_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Any:
    supervisor = Supervisor("restart", max_restarts=100, backoff_s=0.0, idempotent=("add",))
    return Mortal.create_group().launch(cluster, name="mortal", placement_strategy=TWO, supervisor=supervisor)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", "it was killed by SIGKILL"),
        pytest.param("SIGSEGV", "it was killed by SIGSEGV", marks=pytest.mark.slow),
        ("3", "it exited with status 3"),
    ],
)
def test_a_death_is_named_and_the_rank_comes_back(group: Any, how: str, words: str) -> None:
    before, restarts = group.pid().wait(), group.restarts
    with pytest.raises(WorkerError) as caught:
        group.execute_on(1).die(how).wait()
    text = str(caught.value)
    assert text.startswith(f"mortal[1] failed in die(): the process died ({words}), pid {before[1]}")
    assert "it is started again. die() may not run twice by itself: its caller begins it once more, or the run ends" in text
    assert "INFO: farewell" in caught.value.remote_traceback
    after = group.pid().wait()
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert group.restarts == (restarts[0], restarts[1] + 1)
    assert [info.pid for info in group.worker_infos] == after


def test_calls_are_issued_again_only_if_they_may_run_twice(group: Any, tmp_path: Path) -> None:
    one, mark = group.execute_on(1), tmp_path / "napping"
    one.add().wait()
    handles = [one.nap(mark), one.add(), one.sleep(0.0), one.add()]
    assert eventually(mark.exists)
    os.kill(one.worker_infos[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"mortal\[1\] failed in sleep\(\): .* not run twice"):
        handles.pop(2).wait()
    late = one.add()
    assert [handle.wait() for handle in [*handles, late]] == [["napped"], [1], [2], [3]]


def kill(group: Any, rank: int) -> None:
    """Kills a rank and waits until the driver knows."""
    restarts = group.restarts[rank]
    os.kill(group.worker_infos[rank].pid, signal.SIGKILL)
    assert eventually(lambda: group.restarts[rank] > restarts, SOON_S)


def test_messages_wait_for_the_return_of_their_receiver(group: Any, cluster: Cluster) -> None:
    talker = Mortal.create_group().launch(cluster, name="talker", placement_strategy=TWO)
    waiter = talker.execute_on(1).get(cluster.create_channel("still"))
    talker = talker.execute_on(0)
    talker.tell("mortal", "before").wait()
    kill(group, 0)
    talker.tell("mortal", "after").wait()
    assert group.execute_on(0).listen("talker").wait() == ["after"]
    assert not waiter.done()


def test_children_of_a_killed_worker_die_with_it(group: Any) -> None:
    (children,) = group.execute_on(0).parent().wait()
    assert all(alive(child) for child in children)
    kill(group, 0)
    assert eventually(lambda: not any(alive(child) for child in children), SOON_S)


def test_what_a_call_raises_belongs_to_who_waits_for_it(group: Any) -> None:
    one, count = group.execute_on(1), group.restarts
    with pytest.raises(WorkerError, match=r"failed in leave\(\): SystemExit: 3"):
        one.leave().wait()
    with pytest.raises(WorkerError, match=r"failed in fill\(\): MemoryError"):
        one.fill().wait()
    with pytest.raises(WorkerError, match=r"failed in lock\(\): TypeError: cannot pickle '_thread.lock' object \(its result can't"):
        one.lock().wait()
    with pytest.raises(WorkerError, match=r"failed in strange\(\): .*no_such_module.*\(its result can't"):
        one.strange().wait()
    with pytest.raises(WorkerError, match=r"failed in sleep\(\): .*no_such_module.*\(an argument can't be sent"):
        one.sleep(strange()).wait()
    with pytest.raises(WorkerError, match=r"failed in strange_error\(\): Odd: very") as caught:
        one.strange_error().wait()
    assert "in strange_error" in caught.value.remote_traceback
    with pytest.raises(RLinfError, match=r"mortal\[1\].sleep\(\): an argument can't be pickled: cannot pickle '_thread\.lock'"):
        one.sleep(threading.Lock())
    with pytest.raises(WorkerError, match="broken"):
        group.fail().wait()
    time.sleep(1.5)
    assert one.sleep(0.0).wait() == ["slept"]
    assert group.restarts == count


def test_a_stopped_process_is_named_at_the_deadline(group: Any) -> None:
    pid = group.worker_infos[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: state(pid) == "T")
        with pytest.raises(DeadlineExceeded, match=r"mortal\[1\]\.pid\(\).*stopped \(state T\)"):
            group.execute_on(1).pid().wait(timeout=0.3)
        with pytest.raises(DeadlineExceeded, match=r"mortal\[1\]\.pid\(\).*stopped \(state T\)"):
            gather(group.pid(), timeout=0.3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert group.pid().wait()[1] == pid


def test_a_launch_that_fails_leaves_nothing_and_harms_nobody(group: Any, cluster: Cluster, tmp_path: Any) -> None:
    class FailsToStart(Worker):
        def __init__(self, file: str) -> None:
            with open(file, "a") as log:
                log.write(f"{os.getpid()}\n")
            os._exit(4)

    file = tmp_path / "pids"
    with pytest.raises(WorkerError, match=r"still\[0\] failed in __init__\(\): the process died \(it exited with status 4\)"):
        FailsToStart.create_group(str(file)).launch(cluster, name="still")
    assert not any(alive(int(pid)) for pid in file.read_text().split())
    with pytest.raises(ConfigError, match="Mortal has no method 'ad'"):
        Mortal.create_group().launch(cluster, name="typo", supervisor=Supervisor("restart", idempotent=("ad",)))
    group.pid().wait()


def test_restarts_are_bounded_and_a_constructor_that_dies_counts(tmp_path: Any) -> None:
    born = tmp_path / "born"
    with new_cluster() as cluster:
        group = Mortal.create_group(str(born)).launch(cluster, name="short", supervisor=Supervisor("restart", max_restarts=2))
        peer = Mortal.create_group().launch(cluster, name="peer")
        handle = peer.get(cluster.create_channel("never"))
        os.kill(group.worker_infos[0].pid, signal.SIGKILL)
        assert eventually(lambda: group.restarts == (1,) and group.worker_infos[0].pid == int(born.read_text().split()[-1]))
        assert group.pid().wait() == [int(born.read_text().split()[1])]
        os.kill(group.worker_infos[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError) as caught:
            handle.wait()
        assert str(caught.value).startswith("short[0] failed in __init__(): the process died (it exited with status 9)")
        assert "started again 2 times, and its supervisor allows no more" in str(caught.value)
        assert group.restarts == (2,)


def test_a_death_ends_the_run_whatever_the_driver_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a consequence is waited for: here it is to be seen, also by a process that does not run for a while.
    monkeypatch.setattr(futures, "SLICE_S", 5.0)
    monkeypatch.setattr(_call, "LAST_WORDS_S", 5.0)
    monkeypatch.setattr(_backend, "FAREWELL_S", 5.0)
    heard: list[RLinfError] = []
    with new_cluster() as cluster:
        victim = Mortal.create_group().launch(cluster, name="victim")
        peer = Mortal.create_group().launch(cluster, name="peer", placement_strategy=TWO)
        cluster.on_failure(heard.append)
        channel = cluster.create_channel("never")
        far = cluster.create_channel("far", near="peer")
        pids = [info.pid for info in peer.worker_infos]
        victim.sleep(600.0)
        blocked, listening = peer.execute_on(0).get(channel), peer.execute_on(1).listen("victim")
        assert eventually(lambda: "good night" in caplog.text)
        waiting = {"peer[0]", "peer[1]"}
        assert eventually(lambda: {waiter.who for waiter in cluster.wait_graph().waiters if waiter.waits} >= waiting)
        start = time.monotonic()
        os.kill(victim.worker_infos[0].pid, signal.SIGKILL)
        message = r"^victim\[0\] failed in sleep\(\): the process died \(it was killed by SIGKILL\)"
        with pytest.raises(WorkerError, match=message) as first:
            gather(blocked, listening, timeout=60.0)
        notes = "\n".join(first.value.__notes__)
        assert "ChannelClosed: channel 'never'" in notes
        assert "victim[0] died" in notes
        for wait in (channel.get, far.get, blocked.wait, peer.pid, lambda: Mortal.create_group().launch(cluster, name="late")):
            with pytest.raises(WorkerError, match=message) as caught:
                wait()
            assert time.monotonic() - start < SOON_S
            assert "INFO: good night" in caught.value.remote_traceback
        # a wait may end before another thread has told of the failure
        assert eventually(lambda: [str(error) for error in heard] == [str(caught.value)])
        assert eventually(lambda: str(caught.value) in caplog.text)
        assert eventually(lambda: not any(alive(pid) for pid in pids), SOON_S)
        with pytest.raises(WorkerError, match=message):
            peer.pid()


def test_shutdown_ends_waits_in_other_threads(cluster: Cluster) -> None:
    errors: list[BaseException] = []

    def wait(what: Any) -> None:
        try:
            what()
        except RLinfError as error:
            errors.append(error)

    with new_cluster() as own:
        group = Mortal.create_group().launch(own, name="sleeper")
        handle = group.sleep(60.0)
        threads = [threading.Thread(target=wait, args=(what,)) for what in (handle.wait, own.create_channel("never").get)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: sum(doing.blocked is not None for doing in waits.activities(DRIVER)) == 2)
        own.shutdown()
        own.shutdown()
        for thread in threads:
            thread.join(SOON_S)
        assert not any(thread.is_alive() for thread in threads)
    assert [type(error) for error in errors] == [ChannelClosed, ChannelClosed]
    assert all("shut down" in str(error) for error in errors)

"""What a run is doing: waits, the graph of them, and what errors say of it. Without Ray."""

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import together, until

from rlinf.core import gather
from rlinf.core.errors import ConfigError, DeadlineExceeded, Deadlock, WorkerError
from rlinf.scheduler import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Worker
from rlinf.scheduler.transport import waits
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.transport.waits import Activity, Blocked, ThreadMonitor, Use, Wait
from rlinf.scheduler.transport.work import Work
from rlinf.scheduler.watch import stacks
from rlinf.scheduler.watch.graph import Waiter, WaitGraph, merged
from rlinf.scheduler.watch.heartbeat import report
from rlinf.scheduler.watch.stall import QUIET_S, Stalls, shortened
from rlinf.scheduler.watch.waits import waiter
from rlinf.scheduler.workers.device_lock import Claim, Locks

LONG_S = 60.0


def waiting(who: str, *peers: str, goal: str = "an item", note: str = "") -> Waiter:
    return Waiter(who=who, method="run", seconds=9.4, goal=goal, place="channel 'c', key 0", waited=8.6, peers=peers, note=note)


def test_a_line_says_who_waits_for_what_how_long_and_what_is_known() -> None:
    assert waiting("env[0]", note="last put by x[0] 3 s ago").describe() == (
        "env[0] has waited 9 s for an item (channel 'c', key 0), in run() for 9 s; last put by x[0] 3 s ago"
    )
    assert (
        Waiter(who="driver", goal="it to return", place="a[0].f()", waited=2.0).describe()
        == "driver has waited 2 s for a[0].f() to return"
    )
    assert Waiter(who="a[0]", method="f", seconds=5.0).describe() == "a[0] has been running f() for 5 s"
    assert Waiter(who="a[0]", note="does not answer: stopped (state T), pid 7").describe() == (
        "a[0] does not answer: stopped (state T), pid 7"
    )


def test_ranks_that_do_the_same_share_a_line() -> None:
    lines = merged(
        [waiting("driver"), *[waiting(f"env[{rank}]") for rank in (0, 1, 2, 5)], waiting("env[3]", goal="room"), waiting("b[1]")]
    )
    assert [re.split(" ha[sv]e? waited", line)[0] for line in lines] == ["driver", "env[0-2,5]", "env[3]", "b[1]"]


def test_circles_are_found_once_and_only_where_each_waits_for_the_next() -> None:
    graph = WaitGraph(
        (
            waiting("driver", "a[0]"),
            waiting("a[0]", "b[0]"),
            waiting("b[0]", "c[0]", "d[0]"),
            waiting("c[0]", "a[0]"),
            waiting("e[0]", "e[0]"),
        )
    )
    assert graph.cycles() == [("a[0]", "b[0]", "c[0]"), ("e[0]",)]
    assert graph.edges["b[0]"] == {"c[0]", "d[0]"}
    assert "  a cycle: a[0] → b[0] → c[0] → a[0]\n  a cycle: e[0] → e[0]" in graph.describe()
    running = Waiter(who="c[0]", method="run", seconds=1.0, peers=("a[0]",))
    assert WaitGraph((waiting("a[0]", "b[0]"), waiting("b[0]", "c[0]"), running)).cycles() == []


def test_a_graph_of_a_thousand_workers_stays_short() -> None:
    graph = WaitGraph(tuple(Waiter(who=f"g{i}[0]", method="run", seconds=1.0) for i in range(1000)))
    lines = graph.describe().splitlines()
    assert len(lines) == 41
    assert lines[-1] == "  … and 960 more"


def test_the_report_has_who_is_stuck_and_otherwise_who_runs() -> None:
    driver = Waiter(who=DRIVER, goal="it to return", place="a[0].f()", waited=30.0)
    running = Waiter(who="a[0]", method="f", seconds=30.0)
    busy = Waiter(who="b[0]", method="f", seconds=30.0, goal="an item", place="channel 'c'", waited=0.1)
    silent = Waiter(who="c[0]", note="does not answer: stopped (state T), pid 7")
    idle = Waiter(who=DRIVER, goal="an answer", place="x", waited=0.0)
    assert report(WaitGraph((driver, idle, running, busy)), 30.0) == [driver.describe(), running.describe(), busy.describe()]
    assert report(WaitGraph((driver, running, busy, silent, waiting("d[0]"))), 5.0) == [
        driver.describe(),
        silent.describe(),
        waiting("d[0]").describe(),
    ]


def test_a_thread_that_blocks_is_seen_in_its_call_and_one_that_runs_is_not() -> None:
    monitor = ThreadMonitor(LONG_S)
    go = False
    wait = Wait("w[0]", "channel 'c', key 0", "an item", None, host="driver", queue=("c", 0))

    def run() -> None:
        with waits.calling("w[0]", "step"), monitor:
            monitor.wait_until(lambda: True, wait)
            assert waits.activities("w[0]")[0].blocked is None
            monitor.wait_until(lambda: go, wait)
            assert waits.current_method() == "step"

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: any(doing.blocked for doing in waits.activities("w[0]")))
    (doing,) = waits.activities("w[0]")
    assert doing.method == "step"
    assert doing.blocked is not None
    assert (doing.blocked.goal, doing.blocked.place, doing.blocked.host) == ("an item", "channel 'c', key 0", "driver")
    assert doing.seconds >= doing.blocked.seconds >= 0
    assert waits.activities("w[1]") == []
    with monitor:
        go = True
        monitor.changed()
    thread.join(60.0)
    assert waits.activities("w[0]") == []
    assert waits.current_method() == ""


def test_a_task_that_awaits_is_seen_in_its_own_call() -> None:
    async def call(method: str, wait: Wait | None) -> None:
        with waits.calling("w[0]", method):
            if wait is None:
                await asyncio.sleep(0.05)
                (own, other) = sorted(waits.activities("w[0]"), key=lambda doing: doing.method)
                assert (own.method, own.blocked) == ("a", None)
                assert (other.method, other.blocked and other.blocked.place) == ("b", "channel 'c', key 0")
                work.finish(3)
            else:
                assert await work == 3

    work: Work[int] = Work(Wait("w[0]", "channel 'c', key 0", "an item"), ThreadMonitor(LONG_S))

    async def main() -> None:
        await asyncio.gather(call("a", None), call("b", Wait("w[0]", "channel 'c', key 0", "an item")))

    asyncio.run(main())
    assert waits.activities("w[0]") == []


def test_who_could_end_a_wait_is_looked_up_where_it_is_known() -> None:
    locks = Locks(lambda: ThreadMonitor(LONG_S))
    locks.acquire(Claim("a[0]", (0, 1), "train"), Wait("a[0]", "device 0-1", "the lock"))

    def line(goal: str, use: Use | None = None, peers: tuple[str, ...] = ()) -> Waiter:
        blocked = Blocked(goal=goal, place="p", seconds=1.0, host="b.0", queue=b"q", peers=peers)
        uses = {} if use is None else {("b.0", b"q"): use}
        return waiter("c[0]", Activity(method="run", seconds=2.0, blocked=blocked), uses, locks)

    use = Use(size=3, putter="x[0]", put_s=4.0, getter="y[0]", got_s=5.0)
    assert (line("an item", use).peers, line("an item", use).note) == (("x[0]",), "3 items there, last put by x[0] 4 s ago")
    assert (line("room", use).peers, line("room", use).note) == (("y[0]",), "3 items there, last got by y[0] 5 s ago")
    assert (line("an item", Use(size=0)).peers, line("an item", Use(size=0)).note) == ((), "nobody has put any")
    assert (line("an item").peers, line("an item").note) == (("b[0]",), "b[0], which hosts it, does not answer")
    assert (line("an item", peers=("z[0]",)).peers, line("an item", peers=("z[0]",)).note) == (("z[0]",), "")
    assert line("the lock").note == ""
    running = waiter("c[0]", Activity(method="run", seconds=2.0, blocked=None), {}, locks)
    assert (running.waits, running.method, running.seconds) == (False, "run", 2.0)


def test_what_a_wait_costs() -> None:
    wait = Wait("w[0]", "channel 'c', key 0", "an item")
    start = time.process_time()
    for _ in range(20_000):
        waits.end(waits.begin(wait))
    assert (time.process_time() - start) / 20_000 < 20e-6  # about 0.5 µs on an idle machine


def test_the_last_use_of_a_queue() -> None:
    uses = waits.Uses()
    assert uses.of("q", 0).describe(for_room=False) == ("", "nobody has put any")
    uses.note("q", "env[0]", put=True)
    who, words = uses.of("q", 2).describe(for_room=False)
    assert (who, re.sub(r"\d+ s", "N s", words)) == ("env[0]", "2 items there, last put by env[0] N s ago")
    assert uses.of("q", 1).describe(for_room=True) == ("", "1 item there, nobody has got any")
    for i in range(waits.QUEUES):
        uses.note(i, "env[0]", put=True)
    assert uses.of("q", 0).putter == ""


def some_stacks() -> dict[str, Sequence[stacks.Stack]]:
    frames = tuple(f"f{i} (a.py:{i})" for i in range(9))
    call = stacks.Stack("MainThread", (*frames, "perform (rlinf/scheduler/workers/calls.py:99)", "run (b.py:1)"))
    return {DRIVER: [call], "a[0]": [stacks.Stack("idle", frames), call], "b[0]": [stacks.Stack("stopped (state T), pid 7", ())]}


def test_an_error_carries_the_graph_and_once_in_a_while_the_stacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = WaitGraph((waiting("a[0]", "b[0]"),))
    stalls = Stalls(lambda: graph, some_stacks, str(tmp_path))
    error = DeadlineExceeded("a.run()", "not done after 9 s", "Raise it.")
    stalls.explain(error)
    assert str(error) == f"a.run(): not done after 9 s. Raise it.\nWho waits for whom:\n{graph.describe()}"
    (note,) = error.__notes__
    (file,) = (tmp_path / "stalls").iterdir()
    assert note == (
        "What the workers run (most recent call first):\n"
        "  a[0]: f0 (a.py:0) < f1 (a.py:1) < f2 (a.py:2) < f3 (a.py:3) < f4 (a.py:4) < f5 (a.py:5) < …\n"
        f"  b[0]: stopped (state T), pid 7\nAll stacks: {file}"
    )
    text = file.read_text()
    assert graph.describe() in text
    assert "run (b.py:1)" in text
    assert str(file) in caplog.text
    again = DeadlineExceeded("a.run()", "not done after 9 s")
    stalls.explain(again)
    assert str(again).startswith("a.run(): not done after 9 s. Who waits for whom:\n")
    assert not hasattr(again, "__notes__")
    assert QUIET_S > 1
    idle = {DRIVER: some_stacks()[DRIVER], "a[0]": some_stacks()["a[0]"][:1]}
    assert shortened(idle) == "No worker runs a method."


def test_without_a_folder_for_logs_stacks_go_to_a_temporary_file_and_not_to_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    error = DeadlineExceeded("a.run()", "not done after 1 s")
    Stalls(lambda: WaitGraph(()), some_stacks, None).explain(error)
    (file,) = tmp_path.glob("rlinf-*/stalls/*.txt")
    assert str(error) == "a.run(): not done after 1 s", "nobody waits any more: there is no graph to show"
    assert "run (b.py:1)" in file.read_text()
    assert error.__notes__[0].endswith(f"All stacks: {file}")
    assert "run (b.py:1)" not in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_a_full_disk_leaves_the_stacks_in_the_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "stalls").write_text("no folder")
    error = DeadlineExceeded("a.run()", "not done after 1 s")
    Stalls(lambda: WaitGraph(()), some_stacks, str(tmp_path)).explain(error)
    assert "a[0]: f0 (a.py:0)" in error.__notes__[0]
    assert "All stacks" not in error.__notes__[0]
    assert "can't be written" in caplog.text


def test_an_explanation_that_fails_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise OSError("no")

    error = DeadlineExceeded("a.run()", "not done after 9 s")
    Stalls(broken, some_stacks, None).explain(error)
    assert str(error) == "a.run(): not done after 9 s"
    assert "could not be explained" in caplog.text


class Peer(Worker):
    def get(self, channel: Channel, timeout: float | None = None) -> Any:
        return channel.get(timeout=timeout)

    def put(self, channel: Channel, item: Any) -> None:
        channel.put(item)

    def exchange(self, mine: Channel, theirs: Channel) -> None:
        theirs.put(0)
        mine.get()
        mine.get()

    def hold(self, channel: Channel) -> None:
        with self.device_lock:
            channel.get()


def launch(cluster: Cluster, name: str, count: int = 1) -> Any:
    return Peer.create_group().launch(cluster, name=name, placement_strategy=NodePlacementStrategy([0] * count))


def test_a_deadlock_shows_the_circle_and_who_put_last(local_cluster: Cluster) -> None:
    one, two = launch(local_cluster, "one"), launch(local_cluster, "two")
    there, back = local_cluster.create_channel("there"), local_cluster.create_channel("back")
    handles = [one.exchange(there, back), two.exchange(back, there)]
    with pytest.raises(Deadlock) as caught:
        gather(*handles, timeout=30.0)
    text = re.sub(r"\d+ s", "N s", str(caught.value))
    within = "in exchange() for N s; last put by"
    assert f"  one[0] has waited N s for an item (channel 'there', key 'default'), {within} two[0] N s ago\n" in text
    assert f"  two[0] has waited N s for an item (channel 'back', key 'default'), {within} one[0] N s ago\n" in text
    assert "  a cycle: one[0] → two[0] → one[0]\n" in text


def test_the_graph_and_the_stacks_on_demand(local_cluster: Cluster) -> None:
    channel = local_cluster.create_channel("letters")
    first = FlexiblePlacementStrategy([[0]])
    one = Peer.create_group().launch(local_cluster, name="one", placement_strategy=first)
    two = Peer.create_group().launch(local_cluster, name="two", placement_strategy=first)
    handles = [one.hold(channel), two.hold(channel)]
    for _ in range(2):  # who looks twice lets the workers run
        assert not any(handle.done() for handle in handles)
    graph = local_cluster.wait_graph()
    assert re.sub(r"\d+ s", "N s", graph.describe()) == (
        "  one[0] has waited N s for an item (channel 'letters', key 'default'), in hold() for N s; nobody has put any\n"
        "  two[0] has waited N s for the lock (device 0), in hold() for N s; "
        "device 0 is held by one[0] (for N s, in hold()), in line: two[0] (for N s, in hold())"
    )
    assert graph.edges == {"one[0]": frozenset(), "two[0]": {"one[0]"}}
    found = together(local_cluster.stacks)[0]
    assert sorted(found) == [DRIVER, "one[0]", "two[0]"]
    assert "test_the_graph_and_the_stacks_on_demand (" in found[DRIVER]
    assert "hold (" in found["one[0]"]
    channel.put(1)
    channel.put(2)
    gather(*handles, timeout=30.0)


def test_the_stacks_of_all_threads_of_a_worker(local_cluster: Cluster) -> None:
    both = Peer.create_group().launch(local_cluster, name="both", max_concurrency=2)
    assert both.world_size == 2
    found = local_cluster.stacks()
    assert [found[who].count("thread both[") for who in ("both[0]", "both[1]")] == [2, 2]


def test_a_deadline_of_the_driver_or_of_a_worker_carries_the_graph(local_cluster: Cluster) -> None:
    group, other = launch(local_cluster, "peer"), launch(local_cluster, "other")
    channel, never = local_cluster.create_channel("letters"), local_cluster.create_channel("never")
    waiting = other.get(never)
    with pytest.raises(WorkerError, match="DeadlineExceeded: channel 'letters'") as caught:
        group.get(channel, timeout=9.0).wait()
    assert any("s for an item (channel 'never'" in note for note in caught.value.__notes__)
    never.put(1)
    waiting.wait()


def test_a_heartbeat_that_is_no_number_of_seconds_is_refused() -> None:
    for value in (-1.0, float("inf")):
        with pytest.raises(ConfigError, match="heartbeat_s"):
            Cluster(cluster_cfg={"backend": "local", "heartbeat_s": value})

"""The contract of clusters and worker groups, as an examiner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf.core.cluster.futures import gather
from rlinf.core.errors import ContractError, RLinfError, WorkerError
from rlinf.core.protocols import Cluster
from rlinf.core.testing.checks import expect, expect_equal, expect_raised, run_checks
from rlinf.core.testing.cluster_peers import Clash, Peer
from rlinf.core.worker import Worker

TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class ClusterContract:
    """Examines a cluster.

        ClusterContract(cluster=cluster, two=NodePlacementStrategy([0, 0])).run()

    Attributes:
        cluster: a running cluster; groups whose names begin with `prefix` are launched on it. It runs on afterwards.
        two: the placement strategy of a group of two ranks.
        prefix: what the names begin with, so that one cluster can be examined several times.
    """

    cluster: Cluster
    two: Any
    prefix: str = "cluster-contract"
    _group: Any = field(default=None, init=False, repr=False)
    _peers: Any = field(default=None, init=False, repr=False)

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """The sentences that hold, all of them, each told to `report` at once; a ContractError says which doesn't, and why."""
        self._group = Subject.create_group(7, word="seven").launch(self.cluster, name=self.prefix, placement_strategy=self.two)
        self._peers = Peer.create_group().launch(self.cluster, name=f"{self.prefix}-peers", placement_strategy=self.two)
        return run_checks(self, CHECKS, report)

    @property
    def group(self) -> Any:
        """A group of two subjects."""
        return self._group

    @property
    def peers(self) -> Any:
        """A group of two peers."""
        return self._peers


class Subject(Worker):
    """A worker that shows what its cluster does."""

    def __init__(self, number: int, *, word: str) -> None:
        if number < 0:
            raise ValueError(f"rank {self.rank} refuses {number}")
        self.arguments = (number, word)
        self.seen: list[int] = []

    def identity(self) -> tuple[str, int, int]:
        """Group, rank and world size."""
        return self.group_name, self.rank, self.world_size

    def constructed_with(self) -> tuple[int, str]:
        """The constructor's arguments."""
        return self.arguments

    def note(self, number: int) -> list[int]:
        """All numbers noted so far."""
        self.seen.append(number)
        return list(self.seen)

    def fail(self, rank: int) -> int:
        """Raises on one rank."""
        if self.rank == rank:
            raise KeyError("the subject fails on purpose")
        return self.rank

    def leave(self) -> None:
        """Calls `sys.exit`."""
        sys.exit(3)

    def exchange(self, items: list[str]) -> list[str]:
        """Sends items to the other rank, and gets what it sent."""
        peer = 1 - self.rank
        for item in items:
            self.send(f"{item}{self.rank}", self.group_name, peer, tag="x")
        return [self.recv(self.group_name, peer, tag="x", timeout=TIMEOUT_S) for _ in items]

    def lock_twice(self) -> bool:
        """Takes the device lock inside the device lock."""
        with self.device_lock, self.device_lock:
            return True


def _identity(suite: ClusterContract) -> None:
    found = suite.group.identity().wait(TIMEOUT_S)
    expect_equal(found, [(suite.prefix, 0, 2), (suite.prefix, 1, 2)], "group.identity().wait()")
    expect_equal((suite.group.name, suite.group.world_size), (suite.prefix, 2), "group.name, group.world_size")


def _arguments(suite: ClusterContract) -> None:
    expect_equal(suite.group.constructed_with().wait(TIMEOUT_S), [(7, "seven")] * 2, "the constructor's arguments")


def _order(suite: ClusterContract) -> None:
    handles = [suite.group.note(i) for i in range(4)]
    expect_equal(gather(*handles, timeout=TIMEOUT_S)[-1], [[0, 1, 2, 3]] * 2, "calls in order")
    expect(all(handle.done() for handle in handles), "handle.done()", "expected True after the wait")


def _view(suite: ClusterContract) -> None:
    view = suite.group.execute_on(1)
    expect_equal((view.identity().wait(TIMEOUT_S), view.world_size), ([(suite.prefix, 1, 2)], 1), "group.execute_on(1)")
    expect_equal(suite.group.world_size, 2, "group.world_size after a view was taken")


def _failure(suite: ClusterContract) -> None:
    error = expect_raised(WorkerError, lambda: suite.group.fail(1).wait(TIMEOUT_S), "a call that raises")
    expect_equal((error.group, error.rank, error.method), (suite.prefix, 1, "fail"), "WorkerError.group, rank, method")
    expect("KeyError" in error.problem and "on purpose" in error.problem, "WorkerError.problem", f"found '{error.problem}'")
    expect("in fail" in error.remote_traceback, "WorkerError.remote_traceback", "expected the worker's own traceback")
    expect(not error.secondary, "WorkerError.secondary", "expected False for a first cause")
    expect_equal(len(suite.group.identity().wait(TIMEOUT_S)), 2, "a call after a failed one")


def _exit(suite: ClusterContract) -> None:
    error = expect_raised(WorkerError, lambda: suite.group.leave().wait(TIMEOUT_S), "a call of sys.exit")
    expect("SystemExit" in error.problem, "WorkerError.problem", f"expected SystemExit in it, found '{error.problem}'")


def _constructor(suite: ClusterContract) -> None:
    name = f"{suite.prefix}-refused"
    error = expect_raised(
        WorkerError, lambda: Subject.create_group(-1, word="").launch(suite.cluster, name=name), "a constructor that raises"
    )
    expect_equal((error.group, error.rank, error.method), (name, 0, "__init__"), "WorkerError.group, rank, method")
    # The name is free again.
    Subject.create_group(1, word="").launch(suite.cluster, name=name)


def _unknown(suite: ClusterContract) -> None:
    for method in ("identty", "_context"):
        try:
            getattr(suite.group, method)()
        except (AttributeError, RLinfError) as error:
            expect(method in str(error), "the message", f"expected '{method}' in it, found '{error}'")
        else:
            raise ContractError(f"group.{method}()", "expected an error, before anything is sent")


def _messages(suite: ClusterContract) -> None:
    found = suite.group.exchange(["a", "b"]).wait(TIMEOUT_S)
    expect_equal(found, [["a1", "b1"], ["a0", "b0"]], "worker.send and worker.recv")


def _lock(suite: ClusterContract) -> None:
    expect_equal(suite.group.lock_twice().wait(TIMEOUT_S), [True, True], "the device lock, entered twice")


def _async(suite: ClusterContract) -> None:
    waiting = [suite.peers.wait_until_open(), suite.peers.wait_until_open()]
    suite.peers.open_all().wait(TIMEOUT_S)
    expect_equal([handle.wait(TIMEOUT_S) for handle in waiting], [[0, 1]] * 2, "async calls that wait for a later call")
    error = expect_raised(WorkerError, lambda: suite.peers.execute_on(1).fail_later().wait(TIMEOUT_S), "an async call that raises")
    expect_equal((error.rank, error.method), (1, "fail_later"), "WorkerError.rank, method")
    expect("in fail_later" in error.remote_traceback, "WorkerError.remote_traceback", "expected the worker's own traceback")


def _refused(suite: ClusterContract) -> None:
    _refusal(lambda: suite.peers.stream(), "stream", "a call of a generator")
    name = f"{suite.prefix}-clash"
    _refusal(lambda: Clash.create_group().launch(suite.cluster, name=name), "execute_on", "a method named as one of the group's")
    _refusal(lambda: Peer.create_group().launch(suite.cluster, name=name, max_concurency=2), "max_concurrency", "an unknown option")


def _works(suite: ClusterContract) -> None:
    receiving = [suite.peers.receive("first", 3), suite.peers.receive("second", 1)]
    # In another order than they are received: tags don't wait for each other.
    suite.peers.deliver("second", ["d"])
    suite.peers.deliver("first", ["a", "b", "c"])
    expect_equal([work.wait(TIMEOUT_S) for work in receiving], [[["a", "b", "c"]] * 2, [["d"]] * 2], "awaited items")
    expect_equal(suite.peers.mixed(20).wait(TIMEOUT_S), [list(range(20))] * 2, "items with and without handles")


def _tensors(suite: ClusterContract) -> None:
    expect_equal(suite.peers.into().wait(TIMEOUT_S), [(1.0, 3.0), (0.0, 2.0)], "worker.recv_tensor")


def _addresses(suite: ClusterContract) -> None:
    expect_equal(suite.peers.to_itself("x").wait(TIMEOUT_S), ["x", "x"], "a message to itself")
    error = expect_raised(
        WorkerError, lambda: suite.peers.send_to(f"{suite.prefix}-peers", 2).wait(TIMEOUT_S), "a message to a rank too high"
    )
    expect("no rank 2" in error.problem, "WorkerError.problem", f"expected 'no rank 2' in it, found '{error.problem}'")


def _broadcast(suite: ClusterContract) -> None:
    for async_op in (False, True):
        found = suite.peers.share(async_op).wait(TIMEOUT_S)
        expect_equal(found, [(1, (1 << 15) - 1)] * 2, f"worker.broadcast, async_op={async_op}")


def _timers(suite: ClusterContract) -> None:
    handle = suite.peers.nap()
    expect_equal(handle.wait(TIMEOUT_S), [(f"{suite.prefix}-peers:{rank}", True) for rank in (0, 1)], "address, current worker")
    reduced, ranks = handle.consume_durations("mean", return_per_rank=True)
    expect_equal((sorted(reduced), len(ranks)), (["inside", "nap"], 2), "handle.consume_durations")
    expect(reduced["nap"] >= reduced["inside"] > 0, "handle.consume_durations", f"expected nap ≥ inside > 0, found {reduced}")
    found = suite.peers.execute_on(0).pop_execution_times().wait(TIMEOUT_S)[0]
    expect_equal(sorted(found), ["inside", "nap"], "worker.pop_execution_times()")


def _variables(suite: ClusterContract) -> None:
    for rank, found in enumerate(suite.peers.variables().wait(TIMEOUT_S)):
        expected = {"RANK": str(rank), "WORLD_SIZE": "2", "WORKER_NAME": f"{suite.prefix}-peers:{rank}"}
        expect_equal({name: found[name] for name in expected}, expected, "worker.environment")
        expect({"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK"} <= found.keys(), "worker.environment", f"found {found}")


def _children(suite: ClusterContract) -> None:
    found = suite.peers.parent(10).wait(TIMEOUT_S)
    expect_equal(found, [(f"{suite.prefix}-peers:{rank}:0", 10 * (rank + 1)) for rank in (0, 1)], "a child, and what it sent")


def _shutdown(suite: ClusterContract) -> None:
    name = f"{suite.prefix}-ended"
    # Twice: nothing that was meant for the first launch of a name may reach the second.
    for number in range(2):
        group = Peer.create_group().launch(suite.cluster, name=name, placement_strategy=suite.two)
        suite.peers.execute_on(0).send_to(name, 1).wait(TIMEOUT_S)
        found = group.execute_on(1).take(f"{suite.prefix}-peers", 0).wait(TIMEOUT_S)
        expect_equal(found, [0], f"a message to launch {number} of a name")
        waiting = [group.receive("never sent", 1), group.wait_until_open(), group.take(f"{suite.prefix}-peers", 1)]
        _refusal(group.execute_on(0).shutdown, "group itself", "the shutdown of a view")
        group.shutdown()
        group.shutdown()
        for handle in waiting:
            error = expect_raised(
                WorkerError, lambda handle=handle: handle.wait(TIMEOUT_S), "a call that has not ended at shutdown"
            )
            expect("was shut down" in error.problem, "WorkerError.problem", f"expected 'was shut down', found '{error.problem}'")
        _refusal(lambda group=group: group.variables(), "was shut down", "a call after the shutdown")
    expect_equal(len(suite.peers.variables().wait(TIMEOUT_S)), 2, "a call of another group after the shutdown")


def _prepared(suite: ClusterContract) -> None:
    name = f"{suite.prefix}-prepared"
    # The launch decides, of the same class and of another one.
    for number, prepared in enumerate((Subject, Peer)):
        suite.cluster.prepare(prepared, name=name, placement_strategy=suite.two)
        group = Subject.create_group(number, word="ready").launch(suite.cluster, name=name, placement_strategy=suite.two)
        expect_equal(group.constructed_with().wait(TIMEOUT_S), [(number, "ready")] * 2, "the workers of a prepared group")
        group.shutdown()
    suite.cluster.prepare(Peer, name=name, placement_strategy=suite.two)
    _refusal(lambda: suite.cluster.prepare(Peer, name=suite.prefix), suite.prefix, "the preparation of a group that there is")


CHECKS: Final[dict[str, Callable[[ClusterContract], None]]] = {
    "A worker knows its group, rank and world size, and results come in order of ranks.": _identity,
    "A worker is constructed with the arguments of create_group.": _arguments,
    "Calls run in the order in which they were sent.": _order,
    "execute_on gives a view, and leaves the group as it is.": _view,
    "A worker's exception is a WorkerError with group, rank, method and traceback, and the worker lives on.": _failure,
    "sys.exit in a worker is a WorkerError.": _exit,
    "A constructor's exception is a WorkerError of __init__, and the name can be used again.": _constructor,
    "A method that the class does not have is refused before anything is sent, and so is a private one.": _unknown,
    "Workers send to each other, in order.": _messages,
    "A worker may enter its device lock twice.": _lock,
    "Async calls overlap with later calls, and fail as others do.": _async,
    "What can't be called is refused: generators, methods with a group's names, options that don't exist.": _refused,
    "Operations that are not waited for keep their place, and async methods await them.": _works,
    "Arrays are received into memory that is there.": _tensors,
    "A worker may send to itself, but to no rank that does not exist.": _addresses,
    "A broadcast gives the source's object to all members.": _broadcast,
    "A call tells how long it and its timers took.": _timers,
    "A worker has what libraries read from the environment.": _variables,
    "A group that is shut down ends its calls, and its name can be launched again.": _shutdown,
    "A group that is prepared is launched with what the launch says, and need not be launched.": _prepared,
    "A child process has an address below its worker's, sends and receives.": _children,
}


def _refusal(call: Callable[[], object], word: str, place: str) -> None:
    try:
        call()
    except RLinfError as error:
        expect(word in str(error), place, f"expected '{word}' in the message, found '{error}'")
    else:
        raise ContractError(place, "expected an error, before anything is sent")

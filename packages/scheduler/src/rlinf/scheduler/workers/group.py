"""`WorkerGroup`: workers of one class, and the handle of a call on all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from rlinf.core.cluster.futures import gather_within
from rlinf.core.errors import ConfigError, DeadlineExceeded, DuplicateName, RLinfError, UnknownName, WorkerError, did_you_mean
from rlinf.core.protocols import Cluster
from rlinf.core.worker import Worker
from rlinf.core.worker.compat import AbsentAttribute
from rlinf.scheduler.newest import newest
from rlinf.scheduler.transport.waits import longer
from rlinf.scheduler.workers.calls import Outcome, Process, RankCall, Unsendable, WorkerInfo
from rlinf.scheduler.workers.group_registry import kind_of
from rlinf.scheduler.workers.loops import in_own_thread
from rlinf.scheduler.workers.remote_groups import find, in_worker

W = TypeVar("W")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
Reduction = Literal["max", "min", "mean"]


class Handle(Generic[R]):
    """A call on the ranks of a group, under way or done. Satisfies `rlinf.core.cluster.futures.Future[list[R]]`."""

    def __init__(self, label: str, calls: Sequence[RankCall], timeout_s: float, *, cooperative: bool = False) -> None:
        self._label = label
        self._calls = calls
        self._timeout_s = timeout_s
        self._cooperative = cooperative
        self._outcomes: list[Outcome] | None = None
        self._explained = False

    @property
    def label(self) -> str:
        """What runs where: `rollout.generate()`."""
        return self._label

    def done(self) -> bool:
        """Whether the call has ended on every rank, or failed on one."""
        return self._outcomes is not None or _ended(self._calls)

    def wait(self, timeout: float | None = None) -> list[R]:
        """The results, in order of ranks.

        Args:
            timeout: seconds; None is the cluster's `timeout_s`. On the `local` back-end a wait may end later, when a call that runs
                waits for something or ends, and gives what has come by then.

        Raises:
            WorkerError: a rank failed; if several did, the first cause, with the others as notes.
            DeadlineExceeded: the time is over; the message names the ranks that still run.
        """
        return [outcome.value for outcome in self._wait(timeout)]

    def state(self) -> str:
        """What keeps ranks that have not ended from running, if anything is known to: "" if nothing is."""
        states = [(call.label, call.state()) for call in self._calls if not call.done()]
        return "; ".join(f"{label}: {state}" for label, state in states if state)

    def explain(self, error: DeadlineExceeded) -> None:
        """Adds to the error of a wait for this handle who waits for whom, and what the workers run."""
        self._calls[0].explain(error)

    def durations(self) -> list[float]:
        """Seconds that each rank ran, once it is done; waits for it."""
        return [outcome.seconds for outcome in self._wait(None)]

    def consume_duration(self, reduction_type: Reduction = "max") -> float:
        """Seconds that the call ran, over all ranks; waits for it.

        Raises:
            UnknownName: there is no such reduction.
        """
        return _reducer(reduction_type)(self.durations())

    @overload
    def consume_durations(self, reduction_type: Reduction = ..., return_per_rank: Literal[False] = ...) -> dict[str, float]: ...

    @overload
    def consume_durations(
        self, reduction_type: Reduction = ..., *, return_per_rank: Literal[True]
    ) -> tuple[dict[str, float], list[dict[str, float]]]: ...

    def consume_durations(self, reduction_type: Reduction = "max", return_per_rank: bool = False) -> Any:
        """Seconds by tag: of the call, under the method's name, and of the workers' timers that ended in it; waits for it.

        Args:
            reduction_type: `max`, `min` or `mean`, over those ranks that have the tag.
            return_per_rank: also give what each rank took.

        Returns:
            Tag → seconds; with `return_per_rank` also the list of each rank's.

        Raises:
            UnknownName: there is no such reduction.
        """
        reduce = _reducer(reduction_type)
        method = self._label.rpartition(".")[2].removesuffix("()")
        ranks = [{method: outcome.seconds, **outcome.timers} for outcome in self._wait(None)]
        tags = dict.fromkeys(tag for rank in ranks for tag in rank)
        reduced = {tag: reduce([rank[tag] for rank in ranks if tag in rank]) for tag in tags}
        return (reduced, ranks) if return_per_rank else reduced

    async def async_wait(self, timeout: float | None = None) -> list[R]:
        """`wait` for asyncio; on the `local` back-end nothing else of the driver runs meanwhile."""
        # On the local back-end another thread would be no task, and may not wait.
        return self.wait(timeout) if self._cooperative else await in_own_thread(self.wait, timeout)

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self.async_wait().__await__()

    def _wait(self, timeout: float | None) -> list[Outcome]:
        if self._outcomes is None:
            try:
                if len(self._calls) == 1:
                    self._outcomes = [self._calls[0].wait(timeout)]
                else:
                    self._outcomes = self._gather(timeout)
            except WorkerError as error:
                # A wait in the worker has reached its deadline; only the driver can see who waits for whom.
                if error.problem.startswith(DeadlineExceeded.__name__) and not self._explained:
                    self._explained = True
                    self._calls[0].explain(error)
                raise
        return self._outcomes

    def _gather(self, timeout: float | None) -> list[Outcome]:
        try:
            return gather_within(self._timeout_s if timeout is None else timeout, self._calls, remedy=longer(timeout))
        except WorkerError:
            # The caller has the first cause; the failures beside it must not end the run later.
            for call in self._calls:
                call.forgive()
            raise


def _ended(calls: Sequence[RankCall]) -> bool:
    ended = [call for call in calls if call.done()]
    return len(ended) == len(calls) or any(call.failed() for call in ended)


def _reducer(name: str) -> Callable[[Sequence[float]], float]:
    if name not in REDUCTIONS:
        raise UnknownName("reduction_type", f"no reduction '{name}'", did_you_mean(name, list(REDUCTIONS), label="Known"))
    return REDUCTIONS[name]


class WorkerGroup(Generic[W]):
    """Workers of one class, one for each rank. Any public method of the class can be called on the group.

    `group.method(*args)` sends the call to every rank and returns a `Handle` at once. In each worker calls begin in the order in
    which they were sent. A call runs to its end before the next one begins; an async one only to where it awaits something, so
    that async calls overlap, and no two pieces of a worker's code run at the same time.
    """

    def __init__(
        self,
        name: str,
        worker: type[W],
        processes: Sequence[Process],
        timeout_s: float,
        *,
        cluster: Cluster | None,
        cooperative: bool = False,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._worker = worker
        self._cluster = cluster
        self._processes = tuple(processes)
        self._timeout_s = timeout_s
        self._cooperative = cooperative
        self._end = end

    @staticmethod
    def from_group_name(worker: type[V], name: str) -> WorkerGroup[V]:
        """The group of that class and name: of a worker's own run, or of the cluster that this process made last.

        In a worker its calls go through the driver, about a round trip more each.

        Args:
            worker: the class with which it was launched, or a base of it.
            name: its name.

        Raises:
            UnknownName: no group of that name was launched.
            ConfigError: it is one of another class.
        """
        transport = in_worker()
        if transport is None:
            group: WorkerGroup[V] = newest("WorkerGroup.from_group_name()").group(name)
            kinds: Sequence[str] = [kind_of(base) for base in group._worker.__mro__]
        else:
            found = find(transport, name)
            group, kinds = WorkerGroup(name, worker, found.processes, found.timeout_s, cluster=None), found.kinds
        if kind_of(worker) not in kinds:
            problem = f"expected workers of {worker.__name__}, found {kinds[0].rpartition('.')[2]}"
            raise ConfigError(f"group '{name}'", problem)
        return group

    @property
    def name(self) -> str:
        """The group's name, unique in its cluster."""
        return self._name

    @property
    def world_size(self) -> int:
        """How many workers this group or view has."""
        return len(self._processes)

    @property
    def cluster(self) -> Cluster:
        """Where the group runs.

        Raises:
            RLinfError: this is a worker, which has no cluster in its hands.
        """
        if self._cluster is None:
            raise RLinfError(f"{self._name}.cluster", "only the driver has it", "Call the group; placement is the driver's.")
        return self._cluster

    @property
    def worker_infos(self) -> tuple[WorkerInfo, ...]:
        """Where each worker is, in order of ranks."""
        return tuple(process.info for process in self._processes)

    @property
    def restarts(self) -> tuple[int, ...]:
        """How often each worker was started again by its `Supervisor`, in order of ranks."""
        return tuple(process.restarts for process in self._processes)

    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """`group.call(Rollout.generate, x)`: the same as `group.generate(x)`, visible to a type checker."""
        return self._send(method.__name__, *args, **kwargs)

    def execute_on(self, *ranks: int | Sequence[int]) -> WorkerGroup[W]:
        """A view of some ranks: `execute_on(0, 2)` or `execute_on([0, 2])`; the group itself is unchanged.

        Raises:
            UnknownName: the group has no such rank.
        """
        chosen = [rank for some in ranks for rank in ([some] if isinstance(some, int) else some)]
        if not chosen:
            raise UnknownName(f"{self._name}.execute_on", "it names no rank", "Name at least one.")
        known = {process.info.rank: process for process in self._processes}
        for rank in chosen:
            if rank not in known:
                raise UnknownName(f"{self._name}.execute_on", f"no rank {rank}", f"Ranks: {', '.join(map(str, known))}.")
        return WorkerGroup(
            self._name,
            self._worker,
            [known[rank] for rank in chosen],
            self._timeout_s,
            cluster=self._cluster,
            cooperative=self._cooperative,
        )

    def shutdown(self) -> None:
        """Ends all workers of the group, whatever they do; its name can then be launched again. A second call does nothing.

        Calls that have not ended fail with a `WorkerError`, and so does whoever calls the group later, with an `RLinfError`. The
        devices that its workers held go to the next in line. Channels that they hosted are lost, and who waits for a message of
        theirs waits on, for the next group of that name.

        Raises:
            RLinfError: this is a view of some ranks, or a worker, which does not own the group.
            DeadlineExceeded: a process of the group did not end.
        """
        if self._end is None:
            owner = "the group itself" if self._cluster is not None else "the driver"
            raise RLinfError(f"{self._name}.shutdown()", f"only {owner} can end it", "Call it there.")
        self._end()

    def __getattr__(self, method: str) -> Callable[..., Handle[Any]]:
        if method.startswith("_"):
            raise AttributeError(f"{self._name}.{method}: private methods of a worker can't be called on its group")
        self._check(method)

        def send(*args: Any, **kwargs: Any) -> Handle[Any]:
            return self._send(method, *args, **kwargs)

        return send

    def __repr__(self) -> str:
        return f"WorkerGroup({self._name!r}, {self._worker.__name__}, {self.world_size} workers)"

    def _send(self, method: str, *args: Any, **kwargs: Any) -> Handle[Any]:
        self._check(method)
        calls = [process.submit(method, args, kwargs) for process in self._processes]
        return Handle(f"{self._name}.{method}()", calls, self._timeout_s, cooperative=self._cooperative)

    def _check(self, method: str) -> None:
        if method.startswith("_") or not callable(getattr(self._worker, method, None)):
            problem = f"{self._worker.__name__} has no public method '{method}'"
            raise UnknownMethod(f"{self._name}.{method}", problem, self._instead(method))
        if yields(getattr(self._worker, method)):
            raise Unsendable.of(f"{self._name}.{method}()")

    def _instead(self, method: str) -> str:
        """What to call in place of a method that the workers lack."""
        with suppress(AttributeError):
            try:
                getattr(self._worker, method)
            except AbsentAttribute as error:
                return error.remedy
        known = [name for name in dir(self._worker) if not name.startswith("_") and callable(getattr(self._worker, name, None))]
        return did_you_mean(method, known, label="Methods")


# An `AttributeError`, too: anything else from `__getattr__` would come out of `hasattr`.
class UnknownMethod(UnknownName, AttributeError):
    """A call of a method that the worker's class does not have."""


def check_methods(worker: type[Any], place: str) -> None:
    """Refuses a class with public methods that a group could not tell from its own.

    Raises:
        DuplicateName: names the method.
    """
    own = [name for name in dir(WorkerGroup) if not name.startswith("_")]
    for name in own:
        if inspect.isfunction(getattr(worker, name, None)) and not hasattr(Worker, name):
            problem = f"{worker.__name__}.{name}() can't be called on a group, which has a '{name}' of its own"
            raise DuplicateName(place, problem, f"Rename it. Taken are {', '.join(own)}.")


def yields(method: Any) -> bool:
    """Whether a function is a generator, async or not."""
    return inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "mean": _mean}

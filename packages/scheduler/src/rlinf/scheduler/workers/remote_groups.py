"""Groups as a worker sees them: its calls go to the driver, which sends them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.core.errors import DeadlineExceeded, RLinfError, WorkerError
from rlinf.scheduler.transport.transport import OPEN_TRANSPORTS, Transport
from rlinf.scheduler.transport.waits import Wait
from rlinf.scheduler.workers.calls import Outcome, Process, WorkerInfo


def in_worker() -> Transport | None:
    """The transport of this worker's process; None in the driver's, which has the groups themselves."""
    return next((transport for transport in list(OPEN_TRANSPORTS.values()) if transport.asks_driver), None)


@dataclass(frozen=True, slots=True)
class Found:
    """What the driver says of a group."""

    kinds: Sequence[str]
    """Its workers' class and the bases of that, by name."""
    processes: Sequence[Process]
    timeout_s: float
    """The default deadline of a call."""


def find(transport: Transport, name: str) -> Found:
    """A group of the run.

    Raises:
        UnknownName: it was not launched.
    """
    kinds, infos, timeout_s = _Questions(transport, f"group '{name}'").ask("find", name)
    return Found(kinds, [_RemoteProcess(transport, index, info) for index, (info, _) in enumerate(infos)], timeout_s)


class _Questions:
    """Questions to the driver about one thing."""

    def __init__(self, transport: Transport, place: str, *, goal: str = "the driver's answer", peers: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._place = place
        self._goal = goal
        self._peers = peers

    def ask(self, *question: Any, timeout: float | None = None) -> Any:
        """The answer."""
        wait = Wait(self._transport.who(), self._place, self._goal, timeout, peers=self._peers)
        try:
            return self._transport.ask("group", *question, wait=wait)
        except WorkerError as error:
            error.secondary = "died" in error.problem  # the driver knows of a failure, which is the first cause of what follows
            raise


class _RemoteProcess:
    """One worker of the group. Satisfies `Process`."""

    def __init__(self, transport: Transport, index: int, info: WorkerInfo) -> None:
        self._transport = transport
        self._index = index
        self._info = info

    @property
    def info(self) -> WorkerInfo:
        """See `Process`; as it was when the group was found."""
        return self._info

    @property
    def restarts(self) -> int:
        return _Questions(self._transport, self._info.label).ask("find", self._info.group)[1][self._index][1]

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _RemoteCall:
        label = f"{self._info.label}.{method}()"
        number = _Questions(self._transport, label).ask("begin", self._info.group, self._index, method, args, dict(kwargs))
        return _RemoteCall(number, label, lambda goal: _Questions(self._transport, label, goal=goal, peers=(self._info.label,)))


class _RemoteCall:
    """A call on one worker of the group. Satisfies `RankCall`."""

    def __init__(self, number: int, label: str, questions: Callable[[str], _Questions]) -> None:
        self._number = number
        self._label = label
        self._questions = questions
        self._outcome: Outcome | None = None
        self._error: RLinfError | None = None

    @property
    def label(self) -> str:
        return self._label

    def wait(self, timeout: float | None = None) -> Outcome:
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            try:
                self._outcome = self._questions("its end").ask("wait", self._number, timeout, timeout=timeout)
            # The call goes on, and can be waited for again.
            except DeadlineExceeded:
                raise
            except RLinfError as error:
                self._error = error
                raise
            # Not of one that failed: `forgive` asks the driver for it once more.
            self._ask("drop")
        assert self._outcome is not None
        return self._outcome

    def done(self) -> bool:
        return self._outcome is not None or self._error is not None or self._ask("state")[0]

    def failed(self) -> bool:
        return self._error is not None or (self._outcome is None and self._ask("state")[1])

    def forgive(self) -> None:
        if self._outcome is None:
            self._ask("forgive")

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        """See `RankCall`; the driver's error has it already."""

    def state(self) -> str:
        return "" if self._outcome is not None else self._ask("state")[2]

    def _ask(self, question: str) -> Any:
        return self._questions("the driver's answer").ask(question, self._number)

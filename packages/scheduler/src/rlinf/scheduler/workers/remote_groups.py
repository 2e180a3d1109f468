"""Groups as a worker sees them: its calls go to the driver, which sends them on."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
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
    kinds, infos, timeout_s = _asked(transport, f"group '{name}'", "find", name)
    return Found(kinds, [_RemoteProcess(transport, index, info) for index, (info, _) in enumerate(infos)], timeout_s)


def _asked(
    transport: Transport,
    place: str,
    *question: Any,
    goal: str = "the driver's answer",
    timeout: float | None = None,
    peers: tuple[str, ...] = (),
) -> Any:
    """What the driver answers to a question about a group."""
    return transport.ask("group", *question, wait=Wait(transport.who(), place, goal, timeout, peers=peers))


_SETTLED: deque[int] = deque()
"""Numbers of calls that nobody here will ask for again, which the driver is told with the next call. Finalisers append to it."""


def _take_settled() -> tuple[int, ...]:
    found: list[int] = []
    # Until it is empty: another thread may take the last one meanwhile.
    with contextlib.suppress(IndexError):
        while True:
            found.append(_SETTLED.popleft())
    return tuple(found)


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
        return _asked(self._transport, self._info.label, "find", self._info.group)[1][self._index][1]

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _RemoteCall:
        label = f"{self._info.label}.{method}()"
        call = (self._info.group, self._index, method, args, dict(kwargs))
        number = _asked(self._transport, label, "begin", *call, _take_settled())
        return _RemoteCall(self._transport, number, label, self._info.label)


class _RemoteCall:
    """A call on one worker of the group. Satisfies `RankCall`."""

    def __init__(self, transport: Transport, number: int, label: str, worker: str) -> None:
        self._transport = transport
        self._number = number
        self._label = label
        self._peers = (worker,)
        self._outcome: Outcome | None = None
        self._error: RLinfError | None = None

    @property
    def label(self) -> str:
        return self._label

    def wait(self, timeout: float | None = None) -> Outcome:
        if not self._ended:
            try:
                self._outcome = self._ask("wait", timeout, goal="it to return", timeout=timeout)
            # The call goes on, and can be waited for again.
            except DeadlineExceeded:
                raise
            except RLinfError as error:
                self._error = error
            _SETTLED.append(self._number)
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def done(self) -> bool:
        return self._ended or self._ask("state")[0]

    def failed(self) -> bool:
        return self._error is not None or (not self._ended and self._ask("state")[1])

    def forgive(self) -> None:
        # Whoever has waited for a call that failed has forgiven it by that.
        if not self._ended:
            self._ask("forgive")

    def explain(self, error: DeadlineExceeded | WorkerError) -> None:
        """See `RankCall`; the driver's error has it already."""

    def state(self) -> str:
        return "" if self._ended else self._ask("state")[2]

    def __del__(self) -> None:
        if not self._ended:
            _SETTLED.append(self._number)

    @property
    def _ended(self) -> bool:
        return self._outcome is not None or self._error is not None

    def _ask(self, kind: str, *details: Any, **wait: Any) -> Any:
        return _asked(self._transport, self._label, kind, self._number, *details, peers=self._peers, **wait)

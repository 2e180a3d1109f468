"""The sender's side of the conversation."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import RLinfError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.manifest import Manifest
from rlinf.engines.weight_sync.messages import (
    DOWN,
    LAST,
    STREAM,
    UP,
    Announcement,
    Commit,
    Consent,
    End,
    Part,
    Receipt,
    Refusal,
    Start,
)

WINDOW = 2
"""How many parts travel at once: one is filled while the other is read."""


class Publication:
    """One set of weights on its way to workers of a group; as a context, what ends it early is told to all of them.

    Args:
        comm: the sender's messenger.
        group: the receivers' group.
        ranks: their ranks, at least one.
        way: the weight sync with its parameters.
        timeout_s: seconds to wait for each answer.
        at_once: whether parts may go to all receivers in one broadcast.
    """

    def __init__(
        self, comm: Messenger, group: str, ranks: Sequence[int], *, way: str, timeout_s: float, at_once: bool = True
    ) -> None:
        self._comm = comm
        self._group = group
        self._ranks = tuple(ranks)
        self._way = way
        self._timeout_s = timeout_s
        self._at_once = at_once and len(self._ranks) > 1
        self._session = uuid.uuid4().hex
        self._members: tuple[tuple[str, int], ...] = ()
        self._works: list[list[Any]] = []
        self._received = 0

    def open(self, weights: Weights[Tensor], manifest: Manifest, check: Callable[[str, Consent], None]) -> list[Consent]:
        """Announces weights, and returns when every receiver has agreed.

        Args:
            weights: their version and extra are announced.
            manifest: what is announced of them.
            check: raises if a receiver (first argument: its name) can't take them.

        Raises:
            WeightSyncError: a receiver can't take them.
            DeadlineExceeded: a receiver did not answer in time.
        """
        announcement = Announcement(
            session=self._session, way=self._way, version=weights.version, manifest=manifest, extra=weights.extra
        )
        for rank in self._ranks:
            self._comm.send(announcement, self._group, rank, tag=DOWN)
        consents = [self._answer(rank, Consent) for rank in self._ranks]
        for rank, consent in zip(self._ranks, consents, strict=True):
            check(f"weights to {self._group}[{rank}]", consent)
        if self._at_once:
            self._members = (consents[0].sender, *((self._group, rank) for rank in self._ranks))
        for rank in self._ranks:
            self._comm.send(Start(session=self._session, members=self._members), self._group, rank, tag=DOWN)
        return consents

    def room(self) -> None:
        """Returns when fewer than `WINDOW` parts travel: every receiver has read the others."""
        while len(self._works) - self._received >= WINDOW:
            self._await_receipt(self._received)
            self._received += 1

    def post(self, content: Any) -> None:
        """Sends a part; its memory must not change before `WINDOW` further calls of `room` and `post`."""
        self.room()
        self._works.append(self._give(Part(session=self._session, number=len(self._works), content=content)))

    def close(self, checksums: Mapping[str, str] | None = None) -> None:
        """Ends it: every receiver says that it has all parts, and then every one hands them over.

        Raises:
            WeightSyncError: a receiver could not read them, or found another checksum. No receiver hands them over.
            DeadlineExceeded: a receiver did not answer in time. No receiver hands them over.
        """
        while self._received < len(self._works):
            self._await_receipt(self._received)
            self._received += 1
        self._wait(self._give(End(session=self._session, parts=len(self._works), checksums=checksums)))
        self._await_receipt(LAST)
        self._wait(self._give(Commit(session=self._session)))

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            return
        refusal = Refusal(session=self._session, problem=str(error) or type(error).__name__)
        for rank in self._ranks:  # who has not heard of the start listens here
            with contextlib.suppress(RLinfError):  # the first failure is the one that is raised
                self._comm.send(refusal, self._group, rank, tag=DOWN, async_op=True)
        if self._members:
            with contextlib.suppress(RLinfError):
                self._give(refusal)

    def _give(self, message: object) -> list[Any]:
        """Sends to all receivers; the works that end when it is on its way."""
        if self._members:
            return [self._comm.broadcast(message, self._members, self._members[0], tag=STREAM, async_op=True)]
        return [self._comm.send(message, self._group, rank, tag=DOWN, async_op=True) for rank in self._ranks]

    def _wait(self, works: Sequence[Any]) -> None:
        for work in works:
            work.wait(self._timeout_s)

    def _await_receipt(self, number: int) -> None:
        if number != LAST:
            self._wait(self._works[number])
        for rank in self._ranks:
            found = self._answer(rank, Receipt).number
            if found != number:
                raise WeightSyncError(f"weights to {self._group}[{rank}]", f"expected a receipt for part {number}, found {found}")
        if number != LAST:
            self._works[number] = []

    def _answer(self, rank: int, kind: type[Any]) -> Any:
        """What a receiver says in this session."""
        while True:
            answer = self._comm.recv(self._group, rank, tag=UP, timeout=self._timeout_s)
            if answer.session != self._session:
                continue
            if isinstance(answer, Refusal):
                raise WeightSyncError(f"weights to {self._group}[{rank}]", f"the receiver can't take them ({answer.problem})")
            if isinstance(answer, kind):
                return answer

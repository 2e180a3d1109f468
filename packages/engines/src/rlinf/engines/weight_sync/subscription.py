"""The receiver's side of the conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import RLinfError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.checksum import checksums
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


class Subscription:
    """One set of weights on its way from a worker; as a context, what ends it early is told to the sender.

    Args:
        comm: the receiver's messenger.
        group: the sender's group.
        rank: the sender's rank.
        way: the weight sync with its parameters, as the sender must have it.
        timeout_s: seconds to wait for each message.
    """

    def __init__(self, comm: Messenger, group: str, rank: int, *, way: str, timeout_s: float) -> None:
        self.place = f"weights from {group}[{rank}]"
        self._comm = comm
        self._sender = (group, rank)
        self._way = way
        self._timeout_s = timeout_s
        self._session = ""
        self._members: tuple[tuple[str, int], ...] = ()
        self._checksums: Mapping[str, str] | None = None

    def open(
        self,
        current: Weights[Tensor],
        held: Callable[[Announcement], Manifest],
        base: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> Announcement:
        """Waits for weights, and returns when every receiver has agreed to them.

        Args:
            current: what the receiver holds.
            held: what of it takes part; raises if the announced does not fit.
            base: the checksums for a patch.

        Raises:
            WeightSyncError: they don't fit, or are older than `current`; or the sender gave up.
            DeadlineExceeded: nothing came in time.
        """
        announcement: Announcement | None = None
        while True:
            message = self._comm.recv(*self._sender, tag=DOWN, timeout=self._timeout_s)
            if isinstance(message, Announcement):
                announcement, self._session = message, message.session
                self._agree(announcement, current)
                self._say(Consent(session=self._session, sender=self._sender, manifest=held(announcement), base=base()))
            elif announcement is not None and self._mine(message) and isinstance(message, Start):
                self._members = message.members
                return announcement

    def parts(self) -> Iterator[Any]:
        """The contents of all parts, in order; a part has been read when the next one is asked for.

        Raises:
            WeightSyncError: the sender gave up, or a part is missing.
            DeadlineExceeded: a part did not come in time.
        """
        number = 0
        while True:
            message = self._next((Part, End))
            found = message.number if isinstance(message, Part) else message.parts
            if found != number:
                raise WeightSyncError(self.place, f"expected part {number}, found {found}")
            if isinstance(message, End):
                self._checksums = message.checksums
                return
            yield message.content
            del message
            self._say(Receipt(session=self._session, number=number))
            number += 1

    def close(self, tensors: Mapping[str, Tensor]) -> None:
        """Compares what was received with the sender's checksums, if it gave any, and returns when all receivers have it whole.

        Raises:
            WeightSyncError: a tensor is not what the sender has; names the first. Or another receiver could not go on.
            DeadlineExceeded: the sender did not answer in time.
        """
        if self._checksums is not None:
            found = checksums(tensors)
            for name, expected in sorted(self._checksums.items()):
                if found.get(name) != expected:
                    problem = f"{name} has checksum {found.get(name)}, the sender's has {expected}; the old weights stay"
                    raise WeightSyncError(self.place, problem, "Synchronise again; if it recurs, the transport is broken.")
        self._say(Receipt(session=self._session, number=LAST))
        self._next((Commit,))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None and self._session:
            with contextlib.suppress(RLinfError):  # the first failure is the one that is raised
                self._say(Refusal(session=self._session, problem=str(error) or type(error).__name__))

    def _agree(self, announcement: Announcement, current: Weights[Tensor]) -> None:
        if announcement.way != self._way:
            problem = f"the sender uses {announcement.way}, the receiver {self._way}"
            raise WeightSyncError(self.place, problem, "Give both the same weight_syncer.")
        if announcement.version < current.version:
            problem = f"expected version {current.version} or newer, found {announcement.version}"
            raise WeightSyncError(self.place, problem, "Load the same checkpoint on both sides to go back.")

    def _say(self, message: object) -> None:
        self._comm.send(message, *self._sender, tag=UP)

    def _next(self, kinds: tuple[type[Any], ...]) -> Any:
        while True:
            if self._members:
                work = self._comm.broadcast(None, self._members, self._members[0], tag=STREAM, async_op=True)
                message = work.wait(self._timeout_s)
            else:
                message = self._comm.recv(*self._sender, tag=DOWN, timeout=self._timeout_s)
            if self._mine(message) and isinstance(message, kinds):
                return message

    def _mine(self, message: Any) -> bool:
        """Whether it belongs to this session; raises if it says that the sender gave up, or began anew."""
        if message.session != self._session:
            if isinstance(message, Announcement):
                raise WeightSyncError(self.place, "the sender began anew before it had ended", "Synchronise again.")
            return False
        if isinstance(message, Refusal):
            raise WeightSyncError(self.place, f"the sender published nothing ({message.problem})")
        return True

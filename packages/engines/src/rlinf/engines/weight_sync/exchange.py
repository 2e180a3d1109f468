"""The exchange of a set of weights: its messages, the sender's side and the receiver's.

    sender                         receivers
      │◀─── Ready ─────────────────────│   it waits; once more if its process was replaced
      │──── Announcement ─────────────▶│   version, names, shapes, types
      │◀─── Consent or Refusal ────────│   what it holds
      │──── Start ────────────────────▶│   all agree; nothing has moved before
      │──── Part 0, 1, 2 … ───────────▶│   at most two without a receipt
      │◀─── Receipt 0, 1, 2 … ─────────│
      │──── End ──────────────────────▶│   the last part, and checksums if asked for
      │◀─── Receipt ───────────────────│   it is whole
      │──── Commit ───────────────────▶│   it is whole everywhere: hand it over
      └──── Refusal ──────────────────▶    instead of any of these

Each message carries the session that it belongs to; what an interrupted session has left in a queue is dropped.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlinf.core.data import Weights
from rlinf.core.errors import RLinfError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.weight_sync.messages import LAST, Announcement, Commit, Consent, End, Part, Ready, Receipt, Refusal, Start
from rlinf.engines.weights.checksum import checksums
from rlinf.engines.weights.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor

DOWN = "weights/down"
"""From the sender to one receiver."""
UP = "weights/up"
"""From a receiver to the sender."""
STREAM = "weights/stream"
"""From the sender to several receivers at once."""
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
        self._announcement: Announcement | None = None
        self._unaware = set(self._ranks)
        self._members: tuple[tuple[str, int], ...] = ()
        self._works: list[list[Any]] = []
        self._received = 0
        self._started: list[Any] = []

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
        self._announcement = announcement
        for rank in self._ranks:
            self._answer(rank, (Ready,))
            self._announce(rank)
        consents = [self._consent(rank) for rank in self._ranks]
        for rank, consent in zip(self._ranks, consents, strict=True):
            check(f"weights to {self._group}[{rank}]", consent)
        if self._at_once:
            self._members = (consents[0].sender, *((self._group, rank) for rank in self._ranks))
        start = Start(session=self._session, members=self._members)
        # Nobody waits for these: the first part may follow at once, and its receipt says that both have come.
        self._started = [self._comm.send(start, self._group, rank, tag=DOWN, async_op=True) for rank in self._ranks]
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

    def close(self, content: Any = None, checksums: Mapping[str, str] | None = None) -> None:
        """Ends it: every receiver says that it has all parts, and then every one hands them over.

        Args:
            content: the last part; None if it was posted as the others.
            checksums: of all weights, for receivers that compare them.

        Raises:
            WeightSyncError: a receiver could not read them, or found another checksum. No receiver hands them over.
            DeadlineExceeded: a receiver did not answer in time. No receiver hands them over.
        """
        # The last part goes with the end, not before it: a small set of weights costs a round trip less.
        end = End(session=self._session, number=len(self._works), content=content, checksums=checksums)
        works = [*self._started]
        if len(self._ranks) == 1:
            # A send that is waited for needs no other thread, which costs a tenth of the time of one large part.
            self._comm.send(end, self._group, self._ranks[0], tag=DOWN)
        else:
            works += self._give(end)
        while self._received < len(self._works):
            self._await_receipt(self._received)
            self._received += 1
        self._wait(works)
        self._await_receipt(LAST)
        self._wait(self._give(Commit(session=self._session)))

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            return
        refusal = Refusal(session=self._session, problem=str(error) or type(error).__name__)
        for rank in self._ranks:  # a receiver that has not heard of the start still reads here, not from the broadcast
            with contextlib.suppress(RLinfError):  # the first failure is the one that is raised
                if rank in self._unaware and self._announcement is not None:  # to know that the refusal is meant for it
                    self._announce(rank)
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
            found = self._answer(rank, (Receipt,)).number
            if found != number:
                raise WeightSyncError(f"weights to {self._group}[{rank}]", f"expected a receipt for part {number}, found {found}")
        if number != LAST:
            self._works[number] = []

    def _announce(self, rank: int) -> None:
        self._unaware.discard(rank)
        self._comm.send(self._announcement, self._group, rank, tag=DOWN, async_op=True)

    def _consent(self, rank: int) -> Consent:
        """Announces once more to a receiver that is ready again: what its process was told before it was replaced is lost."""
        while isinstance(answer := self._answer(rank, (Ready, Consent)), Ready):
            self._announce(rank)
        return answer

    def _answer(self, rank: int, kinds: tuple[type[Any], ...]) -> Any:
        """What a receiver says in this session."""
        while True:
            answer = self._comm.recv(self._group, rank, tag=UP, timeout=self._timeout_s)
            # It names no session, as a process that is new knows of none.
            if isinstance(answer, Ready):
                if Ready in kinds:
                    return answer
                problem = "the receiver's process was replaced in the midst of it"
                raise WeightSyncError(f"weights to {self._group}[{rank}]", problem)
            if answer.session != self._session:
                continue
            if isinstance(answer, Refusal):
                raise WeightSyncError(f"weights to {self._group}[{rank}]", f"the receiver can't take them ({answer.problem})")
            if isinstance(answer, kinds):
                return answer


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
        self._say(Ready())
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
            message = self._next((Part,))
            if message.number != number:
                raise WeightSyncError(self.place, f"expected part {number}, found {message.number}")
            if isinstance(message, End):
                self._checksums = message.checksums
                if message.content is not None:
                    yield message.content
                return
            yield message.content
            # Before the receipt, after which the sender sends more: its memory is not held meanwhile.
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
                raise WeightSyncError(self.place, "the sender began another one before this ended", "Synchronise again.")
            return False
        if isinstance(message, Refusal):
            raise WeightSyncError(self.place, f"the sender published nothing ({message.problem})")
        return True

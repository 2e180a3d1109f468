"""Waiting for several calls at once, so that the first failure is the one that is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from rlinf.core.errors import ConfigError, DeadlineExceeded, Deadlock, is_secondary

R_co = TypeVar("R_co", covariant=True)

SLICE_S = 0.25
"""How often all calls are looked at while one of them is waited for."""
GRACE_S = 2.0
"""How long a consequence waits for its cause."""
AFTERMATH_S = 0.5
"""How long a cause waits for its consequences."""
POLL_S = 1.0
"""A shorter wait is a look at how things are: that it ends in vain needs no explanation."""
LATE_S = 0.5
"""A deadline that is noticed so much later says so."""
MOST_S = 2_000_000.0
"""23 days. The kernel counts the milliseconds of a wait with 31 bits."""


class Future(Protocol[R_co]):
    """The handle of a call that runs elsewhere."""

    @property
    def label(self) -> str:
        """What runs where, for messages."""
        ...

    def wait(self, timeout: float | None = None) -> R_co:
        """The result; raises what the call raised, or `DeadlineExceeded` after `timeout` seconds."""
        ...

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A future that knows more of why it is not done."""

    def explain(self, error: DeadlineExceeded) -> None:
        """Adds it to the error of a wait that reached its deadline."""
        ...


@runtime_checkable
class ReportsObstacle(Protocol):
    """A future that can see whether something keeps its call from going on."""

    def state(self) -> str:
        """What does; "" if nothing is known to."""
        ...


def check_timeout(seconds: float | None, place: str) -> None:
    """Refuses a timeout that no clock reaches; None is the default of whoever waits.

    Raises:
        ConfigError: it is negative, above `MOST_S`, or not a number.
    """
    try:
        # Written so that NaN is refused, too.
        if seconds is None or 0 <= seconds <= MOST_S:
            return
    except TypeError:  # no number
        pass
    problem = f"expected 0 to {MOST_S:.0f} seconds, found {seconds!r:.80}"
    raise ConfigError(place, problem, "Every wait has a deadline; leave it out for the default.")


LONGER = "Pass a longer timeout if this is normal."


def gather(*futures: Future[Any], timeout: float) -> list[Any]:
    """The results of all futures, in order; the first failure ends the wait.

    When a call fails, the others get two seconds to fail too, and the failure that is no mere consequence is raised with
    the rest as notes: a worker that lost its peer must not hide the peer that died.

    Args:
        futures: what to wait for.
        timeout: seconds for all of them together.

    Raises:
        ConfigError: the timeout is negative, infinite or not a number.
        DeadlineExceeded: the time is over; names what was still running.
        Exception: what the first call to fail raised.
    """
    return gather_within(timeout, futures, remedy=LONGER)


def gather_within(timeout: float, futures: Sequence[Future[Any]], *, remedy: str, beside: Sequence[Future[Any]] = ()) -> list[Any]:
    """`gather` for those whose timeout has a name: `remedy` is what the error of the deadline advises.

    A failure of a call that is under way `beside` them ends the wait, too; its result is not waited for.
    """
    check_timeout(timeout, "gather(): timeout")
    deadline = time.monotonic() + timeout
    pending, running = list(futures), list(beside)
    while pending:
        for future in [f for f in running if f.done()]:
            running.remove(future)
            try:
                future.wait(timeout=0.0)
            except Exception as error:  # noqa: BLE001 - as below
                _raise_first_cause(error, [*pending, *running])
        # If none is done, the first is waited for, but only for a moment: then all are looked at again.
        for future in [f for f in pending if f.done()] or pending[:1]:
            was_done = future.done()
            try:
                future.wait(timeout=max(0.0, min(SLICE_S, deadline - time.monotonic())))
            except DeadlineExceeded:
                # It is what the call raised, not the end of this wait.
                if was_done:
                    raise
            except Exception as error:  # noqa: BLE001 - whatever a call raised is sorted, annotated and raised again
                _raise_first_cause(error, [f for f in [*pending, *running] if f is not future])
            else:
                pending.remove(future)
        if pending and (over := time.monotonic() - deadline) >= 0:
            waiting = ", ".join(future.label for future in pending)
            states = "; ".join(found for future in pending if isinstance(future, ReportsObstacle) and (found := future.state()))
            problem = f"not done after {timeout:g} s{states and f'; {states}'}"
            why = f"noticed {over:.1f} s late, as other work of this process ran on" if over >= LATE_S else ""
            late = DeadlineExceeded(waiting, problem, remedy).because(why)
            if timeout >= POLL_S and isinstance(pending[0], Explaining):
                pending[0].explain(late)
            raise late
    return [future.wait(timeout=0.0) for future in futures]


def _raise_first_cause(error: Exception, others: Sequence[Future[Any]]) -> None:
    """Raises the failure that explains the others, with those that follow within moments as notes."""
    failures = [error]
    pending = list(others)
    deadline = time.monotonic() + (GRACE_S if is_secondary(error) else AFTERMATH_S)
    while pending and time.monotonic() < deadline:
        # As above: to wait a moment for each would take many times as long as is promised.
        for future in [f for f in pending if f.done()] or pending[:1]:
            was_done = future.done()
            try:
                future.wait(timeout=0.05)
            except DeadlineExceeded:
                if not was_done:
                    continue
            except Exception as other:  # noqa: BLE001 - collected, the first cause among them is raised below
                failures.append(other)
                if not is_secondary(other):
                    # The cause is found: what a consequence may wait for it is no longer needed.
                    deadline = min(deadline, time.monotonic() + AFTERMATH_S)
            pending.remove(future)
    # The sort is stable: of several causes, the one that was seen first is raised. That all wait where one has failed is no news.
    failures.sort(key=lambda failure: is_secondary(failure) or isinstance(failure, Deadlock))
    first, *rest = failures
    notes: list[str] = []
    for other in rest:
        if _same(first, other):
            notes += getattr(other, "__notes__", [])
        elif not isinstance(other, Deadlock):
            notes.append(f"In consequence: {other}")
    # One failure may have ended several waits; what it notes is shown once.
    for note in dict.fromkeys(notes):
        if note not in getattr(first, "__notes__", []):
            first.add_note(note)
    raise first


def _same(first: Exception, other: Exception) -> bool:
    """Both tell of one failure: that which ended the run ends every wait in it."""
    return type(first) is type(other) and str(first) == str(other)

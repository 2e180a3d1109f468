"""Every error that this project raises on purpose: the place, the value and the way out.

The message of an `RLinfError` reads `place: what was expected, what was found. What to do.` A command shows it without a
traceback and exits with the error's `exit_code`.
"""

from __future__ import annotations

import asyncio
import difflib
import queue
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar


class RLinfError(Exception):
    """The base of all errors of this project; its text is meant for the person who can mend it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        self.place = place
        self.problem = problem
        self.remedy = remedy
        super().__init__(place, problem, remedy)

    def move(self, place: str) -> None:
        """Names another place, such as the whole key where only its last part was known."""
        self.place = place
        self.args = (place, *self.args[1:])  # what unpickling calls the constructor with

    def extend(self, more: str) -> None:
        """Says more of the problem, such as where a part was that knew only itself."""
        self.problem = f"{self.problem}, {more}"
        self.args = (self.args[0], self.problem, *self.args[2:])

    def __str__(self) -> str:
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        if not self.remedy:
            return text
        # Such a text ends with the lines of a log.
        return text + self.remedy if text.endswith("\n") else f"{text.rstrip('.;')}. {self.remedy}"


def error_text(error: BaseException) -> str:
    """`ValueError: what it says`; of an error that says nothing, as an `assert` without words, the name alone."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class ConfigError(RLinfError):
    """A configuration value can't be used; raised before any work starts."""

    exit_code = 2


class ConfigErrors(ConfigError):
    """Several faults of one configuration, reported together.

    Attributes:
        faults: each of them; faults that were such lists themselves are joined.
    """

    def __init__(self, place: str, faults: Iterable[ConfigError]) -> None:
        self.faults: tuple[ConfigError, ...] = tuple(single for fault in faults for single in each_fault(fault))
        super().__init__(place, "\n  ".join([f"{len(self.faults)} faults", *map(str, self.faults)]))
        self.args = (place, self.faults)  # what unpickling calls the constructor with


class UnknownName(ConfigError):
    """A name that nobody registered."""


class DuplicateName(ConfigError):
    """A name that two owners claim."""


class MissingExtra(ConfigError):
    """An optional dependency that the configuration needs is not installed."""


class PlacementError(ConfigError):
    """A placement that the cluster can't satisfy."""


class ShapeError(RLinfError, ValueError):
    """A rank or a size disagrees; the message names the argument."""


class ContractError(RLinfError, AssertionError):
    """An implementation breaks the published contract of its protocol."""


class CheckpointError(RLinfError):
    """A checkpoint is incomplete, damaged or made for something else."""


class WeightSyncError(RLinfError):
    """Sender and receiver of weights disagree about names, shapes, types or versions."""


class NonFiniteError(RLinfError):
    """A loss, a gradient or an observation is infinite or not a number."""


class DeadlineExceeded(RLinfError, TimeoutError):
    """A wait reached its deadline; the message says who waited for what.

    Attributes:
        why: what is known of the cause, which the message has, too; "" if nothing is.
    """

    why: str = ""

    def because(self, why: str) -> DeadlineExceeded:
        """The same error with its cause."""
        error = DeadlineExceeded(self.place, f"{self.problem}; {why}" if why else self.problem, self.remedy)
        error.why = why
        return error


class ChannelClosed(RLinfError, ConnectionError):
    """The other end of a channel is gone; as a rule the consequence of an earlier failure."""


class EndOfStream(RLinfError, EOFError):
    """A channel was closed and has no item left; how the reading of a channel ends well."""


class ChannelEmpty(RLinfError, asyncio.QueueEmpty, queue.Empty):
    """`get_nowait` found no item."""


class ChannelFull(RLinfError, asyncio.QueueFull, queue.Full):
    """`put_nowait` found no room."""


class Deadlock(RLinfError):
    """Every task of a `local` cluster waits for another; the message is the wait graph."""


class ClusterError(RLinfError):
    """What carries the workers has failed: a node, or a process of the engine beneath them."""


class WorkerError(RLinfError):
    """A worker raised or died.

    Attributes:
        group: the name of its worker group.
        rank: its rank in the group.
        method: what it was doing; "" if no call was under way.
        secondary: it failed only because something else failed before; never the first cause.
        remote_traceback: the whole traceback of the worker's own process and the last lines of its log, or "". A note, which
            Python shows below the error, has the worker's own frames, or the last lines of its log if it did not raise; none if
            the problem says all there is to know (`told`).
    """

    def __init__(
        self,
        group: str,
        rank: int,
        method: str,
        problem: str,
        *,
        remote_traceback: str = "",
        folded: str = "",
        secondary: bool = False,
        told: bool = False,
    ) -> None:
        self.group = group
        self.rank = rank
        self.method = method
        self.secondary = secondary
        self.remote_traceback = remote_traceback
        super().__init__(f"{group}[{rank}] failed in {method}()" if method else f"{group}[{rank}] failed between calls", problem)
        self.args = (group, rank, method, problem)  # what unpickling calls the constructor with
        note = "" if told else (folded or remote_traceback).rstrip()
        if note:
            self.add_note(note.replace("Traceback (", f"Traceback of {group}[{rank}] (", 1) if folded else note)


class RefusedByWorker(WorkerError):
    """A worker found a configuration value that can't be used, which only what it builds can know."""

    exit_code = 2


def is_secondary(error: BaseException) -> bool:
    """Whether an error is the consequence of another one, so that it must not hide the first cause."""
    return isinstance(error, ChannelClosed) or (isinstance(error, WorkerError) and error.secondary)


def each_fault(error: ConfigError) -> tuple[ConfigError, ...]:
    """The faults that an error reports, one by one."""
    return error.faults if isinstance(error, ConfigErrors) else (error,)


def refuse(faults: Sequence[ConfigError], *, place: str = "configuration") -> None:
    """Raises the only fault, or all of them as one error; does nothing without any.

    Raises:
        ConfigError: there is a fault.
    """
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise ConfigErrors(place, faults)


def below(section: str, error: ConfigError) -> ConfigError:
    """The same faults, of a section that was read or checked as a configuration of its own."""
    if isinstance(error, ConfigErrors):
        return ConfigErrors(section, [below(section, fault) for fault in error.faults])
    return type(error)(f"{section}.{error.place}", error.problem, error.remedy)


def with_remedies(faults: Iterable[ConfigError], remedies: Mapping[str, str]) -> list[ConfigError]:
    """The same faults; an unknown key says what stands for it here.

    Args:
        faults: what was found.
        remedies: what to do, by the dotted path of a key that users of other systems know.
    """
    unknown = ("unknown key", "unknown section")
    return [
        type(fault)(fault.place, fault.problem, remedies[fault.place])
        if fault.problem in unknown and fault.place in remedies
        else fault
        for fault in faults
    ]


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice most like `name`, else the only one of which it is a word, whatever the case; None if none is alike."""
    known = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    # A `mlp` that is meant for `mlp_policy` has too few letters to be close to it.
    having = found or [choice for choice in known if name.lower() in re.split(r"[^a-z0-9]+", choice)]
    return known[having[0]] if len(having) == 1 else None


def did_you_mean(name: str, choices: Sequence[str], *, label: str = "Known", marks: Mapping[str, str] = {}) -> str:
    """The second half of an unknown-name message: the nearest choice, and all of them, those in `marks` with a word behind."""
    guess = nearest(name, choices)
    hint = f"Did you mean '{guess}'? " if guess else ""
    listed = [f"{choice} ({marks[choice]})" if choice in marks else choice for choice in sorted(choices)]
    return f"{hint}{label}: {', '.join(listed) or 'none'}."

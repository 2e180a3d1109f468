"""One process of a simulator, seen from here: started, asked, waited for, ended."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from rlinf.core import errors
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.remote.launch import Launch, Workplace, end, fate, has_ended, last_words, start
from rlinf.envs.remote.spaces import Json, read_metadata, read_space
from rlinf.envs.remote.wire import PROTOCOL, Message, Wire, WireClosed
from rlinf.envs.wrappers.contract import EnvMisuse

_TICK = 1.0
_TRANSFER = 30.0
_MENDABLE: dict[str, type[RLinfError]] = {
    kind.__name__: kind for kind in (ConfigError, errors.UnknownName, errors.MissingExtra, errors.ShapeError, RLinfError, EnvMisuse)
}


class Death(Exception):
    """A process ended or didn't answer in time; caught by whoever may start another."""


class Simulator:
    """A process that serves a block of environments; it is asked one thing at a time.

    Args:
        launch: how it is started.
        workplace: where it writes its log.
        index: which process of the environment it is.
        block: the environments it has, a range of `[N]`.
        memory: the descriptor of the shared memory.
    """

    def __init__(self, launch: Launch, workplace: Workplace, index: int, block: range, memory: int) -> None:
        self._launch = launch
        self._log = workplace.log(index)
        self.name = f"simulator {index} (environments {block.start} to {block.stop - 1})"
        self._asked = ""
        self._number = 0
        self._until = 0.0
        self._seconds = 0.0
        ours, theirs = socket.socketpair()
        theirs_lifeline, self._lifeline = os.pipe()
        try:
            with self._log.open("ab") as log:
                self.process = start(launch, workplace.lent, log, (theirs.fileno(), memory, theirs_lifeline))
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(theirs_lifeline)
        ours.settimeout(_TRANSFER)
        self.wire = Wire(ours)
        self._closed = False
        self._owner = os.getpid()
        self._greet(index, block)

    def _greet(self, index: int, block: range) -> None:
        launch = self._launch
        cpu = launch.cpus[index % len(launch.cpus)] if launch.cpus else None
        self.ask(
            "hello",
            launch.deadlines.start,
            protocol=PROTOCOL,
            env=launch.env,
            params=dict(launch.params),
            block=[block.start, len(block)],
            max_episode_steps=launch.max_episode_steps,
            ignore_terminations=launch.ignore_terminations,
            render=launch.render,
            cpu=cpu,
        )

    def ask(self, call: str, seconds: float, **fields: Any) -> None:
        """Sends a question; its answer comes from `wait_for`.

        Args:
            call: what is asked, see `child`.
            seconds: the deadline.
            fields: what goes with it, plain values.

        Raises:
            ConfigError: a field that JSON doesn't know.
        """
        self._asked, self._seconds, self._until = call, seconds, time.monotonic() + seconds
        try:
            self._number += 1
            self.wire.send({"call": call, "number": self._number, **fields})
        except WireClosed:
            pass  # its death is found where its answer is waited for
        except TypeError as error:
            raise ConfigError(
                "env.params", f"a value can't go to the simulator's process ({error})", "Use plain values."
            ) from error

    def answer(self) -> Message | None:
        """The answer if it is complete; only when there is something to read.

        An answer to an earlier question is dropped: an interrupt may have kept its asker from waiting for it.

        Raises:
            Death: there never will be one.
        """
        try:
            message = self.wire.receive()
            while message is not None and message[0]["number"] != self._number:
                message = self.wire.received()
        except WireClosed as error:
            self.die(str(error))
        return message

    def watch(self) -> None:
        """Looks whether an answer can still come.

        Raises:
            Death: the process has ended, or its deadline is over.
        """
        if has_ended(self.process):
            self.die("")
        if time.monotonic() > self._until:
            self.die(f"didn't answer within {self._seconds:g} s")

    @property
    def remaining(self) -> float:
        """Seconds until the deadline of its answer, at most one second, after which it should be looked after."""
        return min(max(self._until - time.monotonic(), 0.0), _TICK)

    def die(self, cause: str) -> NoReturn:
        """Ends the process and says what is known of it.

        Raises:
            Death: always.
        """
        late = cause.startswith("didn't")
        end(self.process, 0.0 if late else 1.0)
        what = f"{cause} and was killed" if late else fate(self.process)
        words = last_words(self._log)
        self.close()
        ending = f"; the last lines of its log:{words}\n" if words else "; its log is empty"
        raise Death(f"{self.name} {what} during {self._asked}{ending}")

    def part(self) -> None:
        """Asks the process to close its environments, without waiting for it."""
        if not (self._closed or self._asked == "close" or has_ended(self.process)):
            self.ask("close", self._launch.deadlines.close)

    def close(self) -> None:
        """Asks the process to close its environments and waits until it has ended; not in a fork of the process that started it."""
        if self._closed or os.getpid() != self._owner:
            return
        self.part()
        self._closed = True
        end(self.process, self._launch.deadlines.close)
        self.wire.close()
        os.close(self._lifeline)


def wait_for(waiting: Sequence[Simulator], most: int | None = None) -> dict[Simulator, Message | Death]:
    """Waits until at least one of several has answered or died.

    Args:
        waiting: at least one, each asked.
        most: how many answers are taken at once; those that come first in `waiting` go first.

    Returns:
        The answers and deaths known by now.
    """
    poller = select.poll()
    by_descriptor = {simulator.wire.fileno(): simulator for simulator in waiting}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    outcomes: dict[Simulator, Message | Death] = {}
    while not outcomes:
        ready = poller.poll(min(simulator.remaining for simulator in waiting) * 1000)
        for descriptor, _ in ready[:most]:
            simulator = by_descriptor[descriptor]
            try:
                answer = simulator.answer()
            except Death as death:
                outcomes[simulator] = death
                poller.unregister(descriptor)
            else:
                if answer is not None:
                    outcomes[simulator] = answer
        if not ready:
            outcomes |= _look_after(waiting)
    return outcomes


def _look_after(waiting: Sequence[Simulator]) -> dict[Simulator, Message | Death]:
    deaths: dict[Simulator, Message | Death] = {}
    for simulator in waiting:
        try:
            simulator.watch()
        except Death as death:
            deaths[simulator] = death
    return deaths


def raise_error(simulator: Simulator, error: Json) -> NoReturn:
    """Raises here what was raised there: the same error if it is one of ours, with the traceback of the other side."""
    kind = _MENDABLE.get(error["kind"], RLinfError)
    raised = kind(error["place"], error["problem"], error["remedy"])
    raised.add_note(f"in {simulator.name}:\n{error['traceback']}")
    raise raised


class Description:
    """What a simulator says of its environments in its answer to `hello`.

    Raises:
        ConfigError: it speaks another protocol.
    """

    def __init__(self, fields: Json) -> None:
        if fields["protocol"] != PROTOCOL:
            problem = f"the simulator speaks protocol {fields['protocol']}, this side {PROTOCOL}"
            raise ConfigError("env.python", problem, "Give both the same version of rlinf-envs.")
        self.versions: dict[str, str] = fields["versions"]
        self.observation: Any = read_space(fields["observation"])
        self.action: Any = read_space(fields["action"])
        self.metadata = read_metadata(fields["metadata"])

"""One process of a simulator, seen from here: started, asked, waited for, ended."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from rlinf.core import errors
from rlinf.core.envs.failures import EnvPlace, locate
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import ConnectionLost, Message, SharedMemory, log_ending
from rlinf.envs.remote.encoding import PROTOCOL
from rlinf.envs.remote.launch import Launch, RunFolder, start
from rlinf.envs.remote.spaces import Json, read_metadata, read_space
from rlinf.envs.wrappers.contract import EnvMisuse

_TICK = 1.0
_EXIT_S = 1.0
"""A closed connection may be seen before the end of its process, whose exit status is the cause to tell."""
_KINDS: dict[str, type[RLinfError]] = {
    kind.__name__: kind for kind in (ConfigError, errors.UnknownName, errors.MissingExtra, errors.ShapeError, RLinfError, EnvMisuse)
}


class SimulatorFailure(Exception):
    """A process ended or didn't answer in time; caught by whoever may start another."""


class SimulatorProcess:
    """A process that serves some of the environments; it is asked one thing at a time.

    Args:
        launch: how it is started.
        folder: where it writes its log.
        index: which process of the environment it is.
        rows: the environments it has, a range of `[N]`.
        memory: where observations and actions lie.
    """

    def __init__(self, launch: Launch, folder: RunFolder, index: int, rows: range, memory: SharedMemory) -> None:
        self._launch = launch
        self._log = folder.log(index)
        self.name = f"simulator {index} (environments {rows.start} to {rows.stop - 1})"
        self._asked = ""
        self._number = 0
        self._until = 0.0
        self._seconds = 0.0
        self.process = start(launch, folder, index, memory)
        self.connection = self.process.connection
        self._closed = False
        self._owner = os.getpid()
        self._send_hello(index, rows)

    def _send_hello(self, index: int, rows: range) -> None:
        launch = self._launch
        cpu = launch.cpus[index % len(launch.cpus)] if launch.cpus else None
        self.ask(
            "hello",
            launch.deadlines.start,
            protocol=PROTOCOL,
            env=launch.env,
            params=dict(launch.params),
            rows=[rows.start, len(rows)],
            max_episode_steps=launch.max_episode_steps,
            ignore_terminations=launch.ignore_terminations,
            render=launch.render,
            cpu=cpu,
        )

    def ask(self, call: str, seconds: float, **fields: Any) -> None:
        """Sends a request; its answer comes from `wait_for`.

        Args:
            call: what is asked, see `server`.
            seconds: the deadline.
            fields: what goes with it, plain values.

        Raises:
            ConfigError: a field that JSON doesn't know.
        """
        self._asked, self._seconds, self._until = call, seconds, time.monotonic() + seconds
        try:
            self._number += 1
            self.connection.send({"call": call, "number": self._number, **fields})
        except ConnectionLost:
            pass  # that the process has ended is found where its answer is waited for
        except TypeError as error:
            raise ConfigError(
                "env.params", f"a value can't go to the simulator's process ({error})", "Use plain values."
            ) from error

    def answer(self) -> Message | None:
        """The answer if it is complete; only when there is something to read.

        An answer to an earlier request is dropped: an interrupt may have kept the caller from waiting for it.

        Raises:
            SimulatorFailure: there never will be one.
        """
        try:
            message = self.connection.receive()
            while message is not None and message[0]["number"] != self._number:
                message = self.connection.received()
        except ConnectionLost:
            self.fail()
        return message

    def check_alive(self) -> None:
        """Looks whether an answer can still come.

        Raises:
            SimulatorFailure: the process has ended, or its deadline is over.
        """
        if self.process.has_ended():
            self.fail()
        if time.monotonic() > self._until:
            self.fail(late=True)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline of its answer, at most one second, after which it should be checked."""
        return min(max(self._until - time.monotonic(), 0.0), _TICK)

    def fail(self, *, late: bool = False) -> NoReturn:
        """Ends the process and tells what is known of its failure.

        Args:
            late: it has not answered in time.

        Raises:
            SimulatorFailure: always.
        """
        doing = self._asked
        if late:
            self.process.kill()
            cause = f"didn't answer within {self._seconds:g} s and was killed during {doing}{log_ending(self._log)}"
        else:
            self.process.wait(_EXIT_S)
            self.process.kill()
            cause = self.process.cause(doing)
        self.close()
        raise SimulatorFailure(f"{self.name} {cause}{self._remedy(cause)}")

    def _remedy(self, cause: str) -> str:
        """How to get a package that the interpreter lacks and without which it can't be spoken to."""
        lacking = re.search(r"No module named '(numpy|gymnasium)'", cause)
        python = self._launch.python
        return f"\n{python} lacks {lacking[1]}: {python} -m pip install numpy 'gymnasium>=1.1'" if lacking else ""

    def request_close(self) -> None:
        """Asks the process to close its environments, without waiting for it."""
        if not (self._closed or self._asked == "close" or self.process.has_ended()):
            self.ask("close", self._launch.deadlines.close)

    def close(self) -> None:
        """Asks the process to close its environments and waits until it has ended; not in a fork of the process that started it."""
        if self._closed or os.getpid() != self._owner:
            return
        self.request_close()
        # Only now: `request_close` does nothing once this is set.
        self._closed = True
        self.process.wait(self._launch.deadlines.close)
        self.process.kill()
        self.connection.close()


def wait_for(waiting: Sequence[SimulatorProcess], most: int | None = None) -> dict[SimulatorProcess, Message | SimulatorFailure]:
    """Waits until at least one of several has answered or failed.

    Args:
        waiting: at least one, each asked.
        most: how many answers are taken at once; those that come first in `waiting` go first.

    Returns:
        The answers and failures known by now.
    """
    poller = select.poll()
    by_descriptor = {simulator.connection.fileno(): simulator for simulator in waiting}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    outcomes: dict[SimulatorProcess, Message | SimulatorFailure] = {}
    while not outcomes:
        # The end of a process closes its connection, which is readable then; only deadlines need the time-out.
        ready = poller.poll(min(simulator.remaining for simulator in waiting) * 1000)
        # `poll` answers in the order in which descriptors were registered: that of `waiting`.
        for descriptor, _ in ready[:most]:
            simulator = by_descriptor[descriptor]
            try:
                answer = simulator.answer()
            except SimulatorFailure as failure:
                outcomes[simulator] = failure
                poller.unregister(descriptor)  # closed by now, and perhaps another file's
            else:
                if answer is not None:
                    outcomes[simulator] = answer
        if not ready:
            outcomes |= _check_all(waiting)
    return outcomes


def _check_all(waiting: Sequence[SimulatorProcess]) -> dict[SimulatorProcess, Message | SimulatorFailure]:
    failures: dict[SimulatorProcess, Message | SimulatorFailure] = {}
    for simulator in waiting:
        try:
            simulator.check_alive()
        except SimulatorFailure as failure:
            failures[simulator] = failure
    return failures


def raise_error(simulator: SimulatorProcess, error: Json) -> NoReturn:
    """Raises here what was raised there: the same error if it is one of ours, with the traceback of the other side."""
    # An error class of the simulator's own doesn't exist in this interpreter.
    kind = _KINDS.get(error["kind"], RLinfError)
    raised = kind(error["place"], error["problem"], error["remedy"])
    locate(raised, EnvPlace(**error["of"]))
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
        self.has_expert: bool = fields["expert"]

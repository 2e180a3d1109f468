"""`ControllerServer`: one arm, driven in this process, for whoever connects.

    client ──act──► session (a thread each) ──► link ──► controller ──► arm
           ◄─state─

One client commands at a time; another one may only when the arm holds. Everybody may look, and stop it. A client that is gone, or
that is silent for `watchdog_s`, leaves an arm that stands still.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rlinf.core.config import read
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import Connection, ConnectionLost
from rlinf.envs.realworld.controller import Controller, ControllerConfig
from rlinf.envs.realworld.link import Link, LinkFaults
from rlinf.envs.realworld.robot import ROBOTS, RobotConfig, SimulatedRobot
from rlinf.envs.realworld.session import Person, Session

LOOPBACK: Final = "127.0.0.1"
_LIMIT: Final = 1 << 20
_SEND_S: Final = 2.0
_POLL_S: Final = 0.2
_END_S: Final = 5.0
"""How long `close` waits for the threads of a server, which stop what they do within moments."""

Clock = Literal["real", "stepped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Which robot is served, and how."""

    robot: str
    """A registered robot."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its own fields."""
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    link: LinkFaults = field(default_factory=LinkFaults)
    clock: Clock = "real"
    """`real`: the arm is driven `rate_hz` times a second, whatever happens. `stepped`, for a simulated one: its time passes only in
    the commands, as fast as it can be computed, so that a run can be repeated to the bit."""
    host: str = LOOPBACK
    """Where it listens. Whoever can connect can move the arm: leave it at loopback, or use a network of the robot's own."""
    port: int = 0
    """0: a free one."""

    def built(self) -> ControllerServer:
        """The server; the robot is connected and stands still.

        Raises:
            ConfigError: a field is wrong, or the arm is no simulated one and can't be stepped.
            RobotFault: the arm doesn't answer.
        """
        config: RobotConfig = ROBOTS.build(self.robot, dict(self.params), place="robot")
        config.check("robot")
        robot = config.connect()
        try:
            if self.clock == "stepped" and not isinstance(robot, SimulatedRobot):
                raise ConfigError("clock", f"the time of '{self.robot}' can't be stepped", "Use the real clock.")
            controller = Controller(robot, self.controller)
            return ControllerServer(controller, clock=self.clock, link=Link(self.link), host=self.host, port=self.port)
        except BaseException:
            robot.close()
            raise


class ControllerServer:
    """See above.

    Args:
        controller: of the arm.
        clock: as in `Serving`.
        link: what lies between clients and controller.
        host: where it listens.
        port: 0 for a free one.

    Raises:
        ConfigError: nothing can listen there.
    """

    def __init__(
        self, controller: Controller, *, clock: Clock = "real", link: Link | None = None, host: str = LOOPBACK, port: int = 0
    ) -> None:
        self.controller, self.clock = controller, clock
        self.lock = threading.RLock()
        self.link = link or Link(LinkFaults())
        self.driver: object = None
        """Whose commands the arm follows; others may command when it holds."""
        self.driven_at = 0.0
        """When it was commanded last, on the clock of this machine."""
        self.verdict = ""
        self.person = Person()
        self.late_ticks = 0
        self._period = controller.config.period_s
        self._now = 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: dict[socket.socket, threading.Thread] = {}
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise ConfigError("port", f"nothing can listen at {host}:{port} ({error})", "Choose another one.") from error
        self.address = f"{host}:{self._listener.getsockname()[1]}"

    @property
    def now(self) -> float:
        """The arm's clock."""
        return time.monotonic() if self.clock == "real" else self._now

    def serve(self) -> None:
        """Drives the arm and answers clients until `close`."""
        self._begin(self._accept, "robot accept")
        try:
            if self.clock == "real":
                self._drive()
            else:
                # Its clients let time pass, each in a thread of its own.
                while not self._ended.wait(_POLL_S):
                    pass
        finally:
            # Whatever ended it, an arm that nobody drives must not go on.
            self._ended.set()
            self._listener.close()
            with self.lock:
                self.controller.close()

    def start(self) -> None:
        """Serves in a thread of its own."""
        self._begin(self.serve, "robot controller")

    def close(self) -> None:
        """Ends `serve`, which brakes first, and its clients' connections; waits for their threads.

        One that still computes in the simulator when Python ends makes it crash.
        """
        self._ended.set()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for client, thread in self._clients.items():
            with contextlib.suppress(OSError):  # it is gone already
                client.shutdown(socket.SHUT_RDWR)
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def has_ended(self) -> bool:
        """Whether nobody drives the arm any more."""
        return self._ended.is_set()

    def step(self, seconds: float) -> None:
        """Lets the arm's time pass, where it is stepped."""
        for _ in range(max(1, round(seconds / self._period))):
            self.tick()
            self._now += self._period

    def tick(self) -> None:
        """One period of the arm."""
        command = self.link.arrived(self.now)
        if command is not None:
            self.verdict = self.controller.submit(command, self.now)
        self.controller.tick(self.now)
        if isinstance(self.controller.robot, SimulatedRobot):
            self.controller.robot.advance(self._period)
        if self.link.delayed:
            self.link.observe(self.controller.state(), self.now)

    def observed(self) -> dict[str, Any]:
        """What a client is told of the arm now."""
        if not self.link.delayed:
            if self.clock == "stepped" and not self.controller.stopped:
                self.controller.refresh()
            self.link.observe(self.controller.state(), self.now)
        told = self.link.observed(self.now) or self.controller.state()
        counts = {**told["counts"], "dropped": self.link.dropped, "late_ticks": self.late_ticks}
        return {**told, "time": self.now, "verdict": self.verdict, "counts": counts, **self.person.seen()}

    def lost(self, session: object) -> None:
        """A client is gone: if the arm followed it, it brakes."""
        with self.lock:
            if self.driver is not session:
                return
            self.driver = None
            self.controller.lose_command()
            if self.clock == "stepped":
                self.step(2 * self.controller.config.watchdog_s)

    def _drive(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            with self.lock:
                self.tick()
            due += self._period
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            else:
                # What was missed is not caught up with: an arm that is driven in bursts jerks.
                self.late_ticks += 1
                due = time.monotonic()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                if not select.select([self._listener], [], [], _POLL_S)[0]:
                    continue
                sock, _ = self._listener.accept()
            except (OSError, ValueError):  # closed meanwhile
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = Session(self, Connection(sock, send_s=_SEND_S, limit=_LIMIT))
            self._clients = {client: thread for client, thread in self._clients.items() if thread.is_alive()}
            self._clients[sock] = threading.Thread(target=session.serve, name="robot client", daemon=True)
            self._clients[sock].start()

    def _begin(self, target: Callable[[], None], name: str) -> None:
        self._threads.append(threading.Thread(target=target, name=name, daemon=True))
        self._threads[-1].start()


def main() -> None:
    """Serves what the parent process asks for, and tells it the address; ends with it."""
    parent = Connection.to_parent()
    request, _ = parent.wait()
    try:
        server = read(Serving, request, place="robot").built()
    except RLinfError as error:
        parent.send({"error": str(error)})
        return
    parent.send({"address": server.address})
    server.start()
    try:
        parent.wait()
    except ConnectionLost:
        server.close()

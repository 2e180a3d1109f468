"""`ControllerServer`: one arm, driven in this process, for whoever connects.

    client ──act──► session (a thread each) ──► link ──► controller ──► arm
           ◄─state─

One client commands at a time; another one may only when the arm holds. Everybody may look, and stop it. A client that is gone, or
that is silent for `watchdog_s`, leaves an arm that stands still.

Requests are JSON objects with an `op`, see `_Session`; an answer has `error` if the request could not be carried out.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import numpy as np

from rlinf.core.config import read
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.process import Connection, ConnectionLost
from rlinf.envs.realworld.controller import Controller, ControllerConfig
from rlinf.envs.realworld.link import Link, LinkFaults
from rlinf.envs.realworld.robot import ROBOTS, Command, Kind, RobotFault, SimulatedRobot

LOOPBACK: Final = "127.0.0.1"
_LIMIT: Final = 1 << 20
_SEND_S: Final = 2.0
_LONGEST_S: Final = 10.0
_POLL_S: Final = 0.2
_ACTS_S: Final = 0.5
"""How long what a person does stays in force; a console repeats it more often."""
_KEYS: Final = 16

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
        config = ROBOTS.build(self.robot, dict(self.params), place="robot")
        config.check("robot")
        robot = config.connect()
        if self.clock == "stepped" and not isinstance(robot, SimulatedRobot):
            robot.close()
            raise ConfigError("clock", f"the time of '{self.robot}' can't be stepped", "Use the real clock.")
        controller = Controller(robot, self.controller)
        return ControllerServer(controller, clock=self.clock, link=Link(self.link), host=self.host, port=self.port)


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
        self.verdict = ""
        self.person = Person()
        self.late_ticks = 0
        self._period = controller.config.period_s
        self._now = 0.0
        self._ended = threading.Event()
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
        threading.Thread(target=self._accept, name="robot accept", daemon=True).start()
        try:
            if self.clock == "real":
                self._drive()
            else:
                self._ended.wait()
        finally:
            # Whatever ended it, an arm that nobody drives must not go on.
            self._ended.set()
            self._listener.close()
            with self.lock:
                self.controller.close()

    def start(self) -> None:
        """Serves in a thread of its own."""
        threading.Thread(target=self.serve, name="robot controller", daemon=True).start()

    def close(self) -> None:
        """Ends `serve`, which brakes first."""
        self._ended.set()

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
            ready, _, _ = select.select([self._listener], [], [], _POLL_S)
            if not ready:
                continue
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = _Session(self, Connection(sock, send_s=_SEND_S, limit=_LIMIT))
            threading.Thread(target=session.serve, name="robot client", daemon=True).start()


class Person:
    """What somebody at the robot does, from when they do it until it is taken note of."""

    def __init__(self) -> None:
        self._motion: list[float] | None = None
        self._keys: list[str] = []
        self._until = 0.0

    def does(self, motion: list[float] | None, keys: list[str]) -> None:
        """Moves the tool, metres and radians per second `[6]`, for a moment; and presses keys."""
        if motion is not None and (len(motion) != 6 or not np.isfinite(motion).all()):
            raise ValueError(f"expected a motion of 6 numbers, found {motion}")
        self._motion, self._until = motion, time.monotonic() + _ACTS_S
        self._keys = [*self._keys, *keys][-_KEYS:]

    def seen(self) -> dict[str, Any]:
        """The motion, None while the person does not act; and the keys."""
        acts = time.monotonic() < self._until
        return {"human": self._motion if acts else None, "keys": list(self._keys)}

    def taken(self) -> dict[str, Any]:
        """The same; a key counts once."""
        seen, self._keys = self.seen(), []
        return seen


class _Session:
    """One client."""

    def __init__(self, server: ControllerServer, connection: Connection) -> None:
        self._server, self._connection = server, connection
        self._controller = server.controller
        self._ops: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "hello": self._hello,
            "state": self._state,
            "act": self._act,
            "hold": self._hold,
            "stop": self._stop,
            "recover": self._recover,
            "human": self._human,
            "place": self._place,
            "unplug": self._unplug,
        }

    def serve(self) -> None:
        """Answers until the client is gone."""
        try:
            while True:
                request, _ = self._connection.wait()
                self._connection.send(self._answer(request))
        except ConnectionLost:
            pass
        finally:
            self._server.lost(self)
            self._connection.close()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        op = request.get("op")
        if op not in self._ops:
            return {"error": f"there is no op {op!r}, known: {', '.join(self._ops)}"}
        try:
            return self._ops[op](request)
        except RLinfError as error:
            return {"error": error.problem}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"'{op}' can't be read ({type(error).__name__}: {error})"}

    def _hello(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        config, arm = self._controller.config, self._controller.robot.arm
        limits = config.limits
        return {
            "name": arm.name,
            "joints": arm.size,
            "home": arm.home,
            "clock": self._server.clock,
            "simulated": isinstance(self._controller.robot, SimulatedRobot),
            "rate_hz": config.rate_hz,
            "watchdog_s": config.watchdog_s,
            "workspace_low": limits.workspace_low,
            "workspace_high": limits.workspace_high,
            "tool_speed": limits.tool_speed,
            "force": limits.force,
        }

    def _state(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._server.lock:
            return self._server.observed()

    def _act(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command = _command(request)
        server = self._server
        with server.lock:
            self._take_over()
            server.verdict = ""
            server.link.send(command, server.now)
            if server.clock == "stepped":
                server.step(command.seconds)
                return {**server.observed(), **server.person.taken()}
        # A client that is killed meanwhile is noticed at once.
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        if poll.poll(command.seconds * 1000):
            raise ConnectionLost("the client is gone, or does not wait for its answer")
        with server.lock:
            return {**server.observed(), **server.person.taken()}

    def _take_over(self) -> None:
        server = self._server
        if server.has_ended:
            raise RobotFault("robot", "its controller has ended")
        if server.driver not in (None, self) and not self._controller.holding:
            raise RobotFault("robot", "another client commands the arm", "Wait until it is silent.")
        server.driver = self

    def _hold(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._server.lock:
            self._controller.hold()
            return self._server.observed()

    def _stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._server.lock:
            self._controller.stop(str(request.get("why", "somebody stopped it"))[:200])
            return self._server.observed()

    def _recover(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._server.lock:
            self._controller.recover()
            return self._server.observed()

    def _human(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a person at the robot does: a motion of the tool, and keys."""
        motion = request.get("motion")
        keys = [str(key)[:20] for key in request.get("keys", ())]
        with self._server.lock:
            self._server.person.does(None if motion is None else [float(x) for x in motion], keys)
            return self._server.observed()

    def _place(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        robot = self._simulated()
        joints = np.array(request["joints"], np.float64)
        scene = {str(name): [float(x) for x in position] for name, position in request.get("scene", {}).items()}
        if joints.shape != (robot.arm.size,) or not np.isfinite(joints).all():
            raise ValueError(f"expected {robot.arm.size} joint angles, found {request['joints']}")
        with self._server.lock:
            self._take_over()
            self._controller.recover()
            self._controller.hold()
            robot.place(joints, scene)
            self._server.link.restart(int(request.get("seed", 0)))
            self._server.verdict = ""
            self._controller.refresh()
            return self._server.observed()

    def _unplug(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._server.lock:
            self._simulated().unplug(bool(request.get("unplugged", True)))
        return {}

    def _simulated(self) -> SimulatedRobot:
        robot = self._controller.robot
        if not isinstance(robot, SimulatedRobot):
            raise RobotFault("robot", "only a simulated arm can do that")
        return robot


def _command(request: Mapping[str, Any]) -> Command:
    seconds, gripper = float(request["seconds"]), request.get("gripper")
    # Written so that what is not a number is refused, too.
    if not 0.0 < seconds <= _LONGEST_S:
        raise ValueError(f"expected 0 < seconds ≤ {_LONGEST_S:g}, found {seconds}")
    return Command(
        kind=cast("Kind", str(request["kind"])),
        values=np.array(request["values"], np.float64),
        seconds=seconds,
        gripper=None if gripper is None else float(gripper),
    )


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


if __name__ == "__main__":
    sys.exit(main())

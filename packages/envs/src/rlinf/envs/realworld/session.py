"""One client of a controller: what it may ask, and what a person at the robot does.

Requests are JSON objects with an `op`; an answer has `error` if the request could not be carried out.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import numpy as np

from rlinf.core.errors import RLinfError, error_text
from rlinf.core.process import Connection, ConnectionLost
from rlinf.envs.realworld.controller import Controller
from rlinf.envs.realworld.link import Link
from rlinf.envs.realworld.robot import Command, HasCamera, Kind, RobotFault, SimulatedRobot

_LONGEST_S: Final = 10.0
_ACTS_S: Final = 0.5
"""How long what a person does stays in force; a console repeats it more often."""
_KEYS: Final = 16
_LEASE_S: Final = 1.0


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
        # Only the newest: while no policy acts nobody takes them, and a console may stay open for days.
        self._keys = [*self._keys, *keys][-_KEYS:]

    def seen(self) -> dict[str, Any]:
        """The motion, None while the person does not act; and the keys."""
        acts = time.monotonic() < self._until
        return {"human": self._motion if acts else None, "keys": list(self._keys)}

    def taken(self) -> dict[str, Any]:
        """The same; a key counts once."""
        seen, self._keys = self.seen(), []
        return seen


class Served(Protocol):
    """What a session needs of the server that it belongs to; see `ControllerServer`."""

    controller: Controller
    clock: str
    lock: threading.RLock
    link: Link
    person: Person
    driver: object
    driven_at: float
    verdict: str

    @property
    def now(self) -> float:
        """The arm's clock."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nobody drives the arm any more."""
        ...

    def step(self, seconds: float) -> None:
        """Lets the arm's time pass, where it is stepped."""
        ...

    def observed(self) -> dict[str, Any]:
        """What a client is told of the arm now."""
        ...

    def lost(self, session: object) -> None:
        """A client is gone."""
        ...


class Session:
    """One client."""

    def __init__(self, server: Served, connection: Connection) -> None:
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
            "frame": self._frame,
        }

    def serve(self) -> None:
        """Answers until the client is gone."""
        try:
            while True:
                request, _ = self._connection.wait()
                answer = dict(self._answer(request))
                # Pixels go behind the JSON, as they are.
                self._connection.send(answer, answer.pop("frame", b""))
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
            return {"error": f"'{op}' can't be read ({error_text(error)})"}

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
            "camera": self._controller.robot.camera if isinstance(self._controller.robot, HasCamera) else 0,
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
            # The time of a stepped arm stands still between commands: what counts is how long nobody has commanded.
            if server.clock == "real" or time.monotonic() - server.driven_at < _LEASE_S:
                raise RobotFault("robot", "another client commands the arm", "Wait until it is silent.")
            server.lost(server.driver)
        server.driver, server.driven_at = self, time.monotonic()

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

    def _frame(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        robot = self._controller.robot
        if not isinstance(robot, HasCamera) or not robot.camera:
            raise RobotFault("robot", "it has no camera")
        # Without the lock: the arm is driven on while its camera takes its time.
        return {"frame": robot.frame().tobytes()}

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

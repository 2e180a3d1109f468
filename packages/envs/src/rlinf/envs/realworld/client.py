"""`ControllerClient`: an arm that another process drives."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.core.process import Connection, ConnectionLost
from rlinf.core.process.connection import Message
from rlinf.envs.realworld.arm import Floats
from rlinf.envs.realworld.robot import ControllerLost, Kind, RobotFault

_SERVE_AGAIN: Final = "Look at the robot, start `rlinf robot serve` again, and resume the run."


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotInfo:
    """What a controller says of its arm."""

    name: str
    joints: int
    """D."""
    home: tuple[float, ...]
    """Radians: where an episode begins."""
    clock: str
    """`real`, or `stepped` where time passes in commands only."""
    simulated: bool
    rate_hz: float
    watchdog_s: float
    """Seconds of silence after which the arm brakes."""
    workspace_low: tuple[float, ...]
    workspace_high: tuple[float, ...]
    tool_speed: float
    """Metres per second, at most."""
    force: float
    """Newtons, at most."""
    camera: int = 0
    """Pixels of its camera, each way; 0 where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotState:
    """What is known of the arm after a command."""

    time: float
    """Seconds on the arm's clock."""
    joints: Floats
    """`[D]` radians."""
    velocity: Floats
    """`[D]` radians per second."""
    position: Floats
    """`[3]` metres, of the tool."""
    rotation: Floats
    """`[3, 3]`, the tool's axes as columns."""
    twist: Floats
    """`[6]`, metres and radians per second, of the tool."""
    force: Floats
    """`[3]` newtons on the tool."""
    gripper: float
    """Its width in metres."""
    stopped: str
    """Why the arm must not move; "" if it may."""
    holding: bool
    """Whether it follows no command."""
    verdict: str
    """Which limits the last command came upon; "" for none."""
    stop_s: float
    """How long the arm took to stand still when it lost its commands last."""
    human: tuple[float, ...] | None
    """`[6]` metres and radians per second, how a person at the console moves the tool; None while nobody does."""
    keys: tuple[str, ...]
    """What was pressed there since the last command."""
    counts: Mapping[str, int]
    """What its controller has counted, since it was started."""


_ARRAYS = ("joints", "velocity", "position", "twist", "force")


class ControllerClient:
    """Commands an arm, and waits for what comes of it.

    Args:
        address: `host:port` of its controller.
        deadline_s: seconds within which it must answer, beside those that a command takes.
        connect_s: seconds within which it must accept the connection; it may have to start first.

    Raises:
        ConfigError: that is no address.
        RobotFault: nobody listens there.
    """

    def __init__(self, address: str, *, deadline_s: float = 5.0, connect_s: float = 5.0) -> None:
        self.address, self._deadline_s = address, deadline_s
        self._connection = Connection(_connected(address, connect_s), send_s=deadline_s)
        self.info = _info(self._ask({"op": "hello"}))

    def act(self, kind: Kind, values: ArrayLike, *, seconds: float, gripper: float | None = None) -> RobotState:
        """Commands the arm for some seconds, and returns what it is like then; see `Command`.

        Raises:
            RobotFault: another client commands it.
            ControllerLost: its controller is gone.
            DeadlineExceeded: its controller doesn't answer.
        """
        listed = np.asarray(values, np.float64).tolist()
        request = {"op": "act", "kind": kind, "values": listed, "seconds": seconds, "gripper": gripper}
        return _state(self._ask(request, seconds))

    def state(self) -> RobotState:
        """What the arm is like now."""
        return _state(self._ask({"op": "state"}))

    def hold(self) -> RobotState:
        """Lets the arm stand still."""
        return _state(self._ask({"op": "hold"}))

    def stop(self, why: str) -> RobotState:
        """Stops the arm until somebody lets it `recover`."""
        return _state(self._ask({"op": "stop", "why": why}))

    def recover(self) -> RobotState:
        """Lets the arm move again.

        Raises:
            RobotFault: it doesn't answer.
        """
        return _state(self._ask({"op": "recover"}))

    def human(self, motion: Sequence[float] | None, keys: Sequence[str] = ()) -> RobotState:
        """What a person at the robot does: a motion of the tool `[6]` per second, for a moment; and keys."""
        return _state(self._ask({"op": "human", "motion": None if motion is None else list(motion), "keys": list(keys)}))

    def place(self, joints: ArrayLike, scene: Mapping[str, Sequence[float]], *, seed: int = 0) -> RobotState:
        """Puts a simulated arm to joint angles `[D]`, and objects to positions; what its link loses follows from the seed.

        Raises:
            RobotFault: it is a real one.
        """
        request = {"op": "place", "joints": np.asarray(joints, np.float64).tolist(), "scene": dict(scene), "seed": seed}
        return _state(self._ask(request))

    def unplug(self, unplugged: bool = True) -> None:
        """Lets a simulated arm answer no more, or again."""
        self._ask({"op": "unplug", "unplugged": unplugged})

    def frame(self) -> NDArray[np.uint8]:
        """What its camera sees now, `[H, W, 3]`.

        Raises:
            RobotFault: it has none.
        """
        pixels, size = self._asked({"op": "frame"})[1], self.info.camera
        if len(pixels) != size * size * 3:
            raise RobotFault(f"robot at {self.address}", f"expected a frame of {size} × {size} × 3 bytes, found {len(pixels)}")
        return np.frombuffer(pixels, np.uint8).reshape(size, size, 3)

    def close(self) -> None:
        """Lets go of the arm, which then stands still."""
        self._connection.close()

    def _ask(self, request: Mapping[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        return self._asked(request, seconds)[0]

    def _asked(self, request: Mapping[str, Any], seconds: float = 0.0) -> Message:
        try:
            self._connection.send(request)
            answer = self._connection.wait_for(seconds + self._deadline_s)
        except ConnectionLost as error:
            problem = f"its controller at {self.address} is gone ({error})"
            raise ControllerLost("robot", problem, _SERVE_AGAIN) from error
        if answer is None:
            # Answers have no numbers: one that comes late would be taken for that of the next request.
            self.close()
            waited = f"'{request['op']}' within {seconds + self._deadline_s:g} s"
            problem = f"its controller at {self.address} has not answered {waited}"
            raise DeadlineExceeded("robot", problem, "Look at the robot and its network.")
        if "error" in answer[0]:
            raise RobotFault(f"robot at {self.address}", str(answer[0]["error"]))
        return answer


def parse_address(address: str, place: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        ConfigError: it is no address.
    """
    host, colon, port = address.rpartition(":")
    # `isdigit` alone accepts digits that `int` refuses, such as '²'; six of them are enough to tell that a port is too large.
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 1 << 16:
        raise ConfigError(place, f"expected host:port, found '{address}'", "Write for instance 127.0.0.1:7000.")
    return host, int(port)


def _connected(address: str, seconds: float) -> socket.socket:
    target, until = parse_address(address, "robot"), time.monotonic() + seconds
    while True:
        try:
            # At least a moment: a timeout of 0 would make a socket that does not wait at all.
            sock = socket.create_connection(target, timeout=max(0.1, until - time.monotonic()))
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            problem = f"no controller answers at {address} ({error})"
            raise RobotFault("robot", problem, "Start it beside the robot: rlinf robot serve.") from error
        # A command is one small packet; without this the kernel may hold it back until it has more to send.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def _info(answer: Mapping[str, Any]) -> RobotInfo:
    fields: dict[str, Any] = {**answer, **{key: tuple(answer[key]) for key in ("home", "workspace_low", "workspace_high")}}
    return RobotInfo(**fields)


def _state(answer: Mapping[str, Any]) -> RobotState:
    fields: dict[str, Any] = {**answer, **{key: np.array(answer[key], np.float64) for key in _ARRAYS}}
    fields["rotation"] = np.array(answer["rotation"], np.float64).reshape(3, 3)
    fields["human"] = None if answer["human"] is None else tuple(answer["human"])
    fields["keys"] = tuple(answer["keys"])
    return RobotState(**fields)

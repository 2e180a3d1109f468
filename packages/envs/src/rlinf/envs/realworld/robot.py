"""What a robot must be able to do so that a controller can drive it, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import RLinfError
from rlinf.core.registry import Registry
from rlinf.envs.realworld.arm import Arm, Floats

Kind = Literal["hold", "joint_velocity", "joint_position", "tool_motion"]
KINDS: tuple[str, ...] = get_args(Kind)


class RobotFault(RLinfError):
    """A robot that does not answer, or that refuses to move until somebody has looked at it."""


class ControllerLost(RobotFault):
    """The process that drives a robot is gone, or the way to it is cut: this connection comes to nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the arm is to do next; a later command takes its place."""

    kind: Kind
    """`joint_velocity` and `joint_position` in radians (per second) `[D]`; `tool_motion`, metres and axis times angle `[6]` in the
    base frame from where the tool is now; `hold` stands still."""
    values: Floats
    seconds: float
    """In which a motion of the tool is to be made."""
    gripper: float | None = None
    """The width in metres to which the gripper moves; None leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the robot's own sensors say."""

    joints: Floats
    """`[D]` radians."""
    velocity: Floats
    """`[D]` radians per second."""
    force: Floats
    """`[3]` newtons on the tool in the base frame, without its weight."""
    gripper: float
    """Its width in metres."""


class Robot(Protocol):
    """The driver of one arm. It is called by its controller alone, at a fixed rate; no call may block longer than a period."""

    arm: Arm

    def read(self) -> Reading:
        """What the sensors say now.

        Raises:
            RobotFault: the arm doesn't answer.
        """
        ...

    def drive(self, velocity: Floats, gripper: float | None) -> None:
        """Moves the joints with velocities `[D]` until it is told otherwise; they keep all limits.

        Raises:
            RobotFault: as `read`.
        """
        ...

    def brake(self) -> None:
        """Stands still as fast as it safely can, and holds. It never raises: there is nothing better to be done."""
        ...

    def recover(self) -> None:
        """Ends a fault of the arm's own, after somebody has looked at it.

        Raises:
            RobotFault: it still doesn't answer.
        """
        ...

    def close(self) -> None:
        """Brakes and lets go."""
        ...


@runtime_checkable
class SimulatedRobot(Robot, Protocol):
    """An arm in a simulator: its time passes when it is told, and it can be put anywhere."""

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        ...

    def place(self, joints: Floats, scene: Mapping[str, Any]) -> None:
        """Puts the arm to joint angles `[D]`, at rest, and objects by name to positions `[3]`."""
        ...

    def unplug(self, unplugged: bool) -> None:
        """Whether it answers from now on."""
        ...


@runtime_checkable
class HasCamera(Protocol):
    """An arm, or the driver of one, with a camera beside it."""

    camera: int
    """Its pixels, each way; 0 if it was made without."""

    def frame(self) -> NDArray[np.uint8]:
        """What it sees now, `[camera, camera, 3]`; called by other threads than that which drives the arm, and may take its time.

        Raises:
            RobotFault: the camera doesn't answer.
        """
        ...


class RobotConfig(Protocol):
    """A registered robot: which one, and how it is reached."""

    def check(self, place: str) -> None:
        """Refuses early what `connect` would refuse late; moves nothing."""
        ...

    def connect(self) -> Robot:
        """The driver, connected; the arm stands still.

        Raises:
            RobotFault: the arm doesn't answer.
        """
        ...


ROBOTS: Registry[Any] = Registry("robot", "rlinf.robots")
register_robot = ROBOTS.register

"""A real Franka arm. Importing this imports no driver and moves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.installing import install_command
from rlinf.envs.adapters import require_packages
from rlinf.envs.spaces import Vector, describe

_JOINT_LOW = (-2.74, -1.78, -2.90, -3.04, -2.80, 0.54, -3.01)
_JOINT_HIGH = (2.74, 1.78, 2.90, -0.15, 2.80, 4.51, 3.01)


class Operator(Protocol):
    """The human at the robot, and the cameras. Each call returns at once, but `await_ready`."""

    def stopped(self) -> bool:
        """Whether the arm must stand still now; asked before and during each motion."""
        ...

    def await_ready(self, deadline: float) -> None:
        """Returns when the scene is set up for an episode and the arm may move.

        Args:
            deadline: seconds to wait at most.

        Raises:
            DeadlineExceeded: nobody confirmed in time.
        """
        ...

    def solved(self) -> bool:
        """Whether the task is solved now, as a human or a detector sees it."""
        ...

    def image(self) -> NDArray[np.uint8]:
        """What the camera sees, `[H, W, 3]`; asked only if the environment was configured with an `image_size`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Franka:
    """One Franka arm over the `franky` driver (libfranka). Run with that driver on franky-sim's simulated arm; never on a real one.

    Actions `[7]` in [−1, 1]: a motion of the hand in the base frame (× `max_translation`), a turn as axis–angle, at most 1 long
    (× `max_rotation`), and the gripper: more than 0.5 opens, less than −0.5 closes, between keeps. `states` `[15]`: joints, hand
    position, hand quaternion (x, y, z, w), gripper width. The target is held inside the workspace. When the operator stops the arm,
    or a joint comes near its limit, the arm stands still and the episode is truncated; each reset waits for the operator.

    This is no safety system. Keep the user stop in your hand.
    """

    robot_ip: str
    operator: str
    """`module:factory` of an `Operator`, called without arguments; without somebody who can stop it, the arm doesn't move."""
    confirm_hardware: bool = False
    """Must be true, or nothing is connected: a run on an arm is never started by mistake."""
    home: tuple[float, ...] | None = None
    """Seven joint angles to which a reset moves the arm, in radians; None: a human brings it there."""
    workspace_low: tuple[float, ...] = (0.30, -0.30, 0.05)
    """Metres, in the base frame."""
    workspace_high: tuple[float, ...] = (0.70, 0.30, 0.60)
    joint_low: tuple[float, ...] = _JOINT_LOW
    """Radians; the data sheet's limits of the FR3. The arm is stopped `joint_margin` before them."""
    joint_high: tuple[float, ...] = _JOINT_HIGH
    joint_margin: float = 0.05
    max_translation: float = 0.02
    """Metres for one step."""
    max_rotation: float = 0.10
    """Radians for one step."""
    dynamics: float = 0.05
    """Share of the arm's greatest speed, acceleration and jerk, at most 0.3."""
    step_seconds: float = 0.1
    ready_seconds: float = 600.0
    """How long a reset waits for the operator, and for the arm to reach `home`."""
    realtime: bool = True
    """Insist on a real-time kernel, which an arm needs; false for a simulated arm, such as franky-sim's."""
    image_size: tuple[int, int] | None = None
    """Height and width of the operator's camera; None: no images."""
    description: str = ""
    """The task in words; "" for none."""

    def check(self, place: str) -> None:
        """Refuses an unconfirmed run, limits that make no sense, and a missing driver; connects to nothing.

        Raises:
            ConfigError: `confirm_hardware` is false, or a limit is wrong.
            MissingExtra: franky is not installed.
        """
        if not self.confirm_hardware:
            remedy = "Set confirm_hardware: true when somebody stands at the arm with a hand on the user stop."
            raise ConfigError(f"{place}.confirm_hardware", "this would move a real arm", remedy)
        for low, high, size in (("workspace_low", "workspace_high", 3), ("joint_low", "joint_high", 7)):
            below, above = getattr(self, low), getattr(self, high)
            if not (len(below) == len(above) == size and all(a < b for a, b in zip(below, above, strict=True))):
                raise ConfigError(
                    f"{place}.{low}", f"expected {size} numbers, each below that of {high}, found {below} and {above}"
                )
        for name, most in (("dynamics", 0.3), ("max_translation", 0.05), ("max_rotation", 0.3), ("step_seconds", 1.0)):
            if not 0.0 < getattr(self, name) <= most:
                raise ConfigError(f"{place}.{name}", f"must be more than 0 and at most {most}, found {getattr(self, name)}")
        self._check_home(place)
        how = f"For a real-time kernel and your libfranka: {install_command('franky-control')}."
        require_packages("franky", place=place, how=how)

    def _check_home(self, place: str) -> None:
        low, high = np.array(self.joint_low) + self.joint_margin, np.array(self.joint_high) - self.joint_margin
        home = np.array((low + high) / 2 if self.home is None else self.home)
        if home.shape != (7,) or not ((home > low) & (home < high)).all():
            raise ConfigError(f"{place}.home", f"expected seven angles within the joint limits, found {self.home}")

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """Connects to the arm; it moves at the first reset. 200 steps, and success ends an episode, unless told otherwise.

        Raises:
            ConfigError: see `check`, or more than one environment.
        """
        self.check("env")
        from rlinf.envs.unverified.franka._franka import make

        return make(self, num_envs, max_episode_steps or 200, ignore_terminations, render)

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)

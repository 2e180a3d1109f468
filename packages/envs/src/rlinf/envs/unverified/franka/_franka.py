"""The franky driver as a `Robot`. Only imported when an arm is connected."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rlinf.core.errors import RLinfError
from rlinf.envs.realworld.arm import PANDA, Floats
from rlinf.envs.realworld.robot import Reading, RobotFault

if TYPE_CHECKING:
    from rlinf.envs.unverified.franka.franka import Franka

logger = logging.getLogger(__name__)

_HOLD_MS: Final = 100
"""How long a velocity is kept: an arm whose controller has died stands still of itself."""
_GRIPPER_S: Final = 0.05
"""Between two looks at the gripper, whose own server answers slowly."""
_CHANGED: Final = 0.002
"""Metres by which the wanted width changes before the gripper is told: it starts anew with each command."""
_CLOSED: Final = 0.01


class FrankyArm:
    """A `Robot`: velocities of the joints, each of which replaces the one before.

    Args:
        config: which arm.

    Raises:
        RobotFault: it doesn't answer.
    """

    def __init__(self, config: Franka) -> None:
        self.arm = PANDA
        self._config = config
        self._franky: Any = importlib.import_module("franky")
        kernel = self._franky.RealtimeConfig.Enforce if config.realtime else self._franky.RealtimeConfig.Ignore
        with _answering():
            self._robot = self._franky.Robot(config.robot_ip, realtime_config=kernel)
            self._gripper = self._franky.Gripper(config.robot_ip)
            self._width = float(self._gripper.width)
        self._followed = self._franky.RelativeDynamicsFactor(1.0, config.dynamics, config.dynamics)
        self._wanted = self._width
        self._moves = False
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch_gripper, name="franka gripper", daemon=True)
        self._watching.start()

    def read(self) -> Reading:
        with _answering():
            state = self._robot.state
            return Reading(
                joints=np.array(state.q, np.float64),
                velocity=np.array(state.dq, np.float64),
                # The driver's estimate, which leaves out the weight of the hand.
                force=np.array(state.O_F_ext_hat_K, np.float64).reshape(-1)[:3],
                gripper=self._width,
            )

    def drive(self, velocity: Floats, gripper: float | None) -> None:
        franky = self._franky
        with _answering():
            if self._robot.has_errors:
                raise RobotFault("robot", "the arm has stopped itself", "Look at it, then let it recover.")
            hold = franky.Duration(_HOLD_MS)
            self._robot.move(franky.JointVelocityMotion(velocity, hold, self._followed), asynchronous=True)
            self._moves = True
            if gripper is not None and abs(gripper - self._wanted) > _CHANGED:
                self._wanted = gripper
                self._grip(gripper)

    def brake(self) -> None:
        # Once: a stop that replaces itself in each period would never end.
        if not self._moves:
            return
        self._moves = False
        # An arm that can't be told stands still when its velocity ends.
        with contextlib.suppress(Exception):
            self._robot.move(self._franky.JointVelocityStopMotion(), asynchronous=True)

    def recover(self) -> None:
        with _answering():
            self._robot.recover_from_errors()
        self.read()

    def close(self) -> None:
        self.brake()
        self._ended.set()

    def _grip(self, width: float) -> None:
        config = self._config
        if width < _CLOSED:
            # Without so wide a tolerance only something of that width would count as grasped.
            self._gripper.grasp_async(width, config.grip_speed, config.grip_force, epsilon_outer=1.0)
        else:
            self._gripper.move_async(width, config.grip_speed)

    def _watch_gripper(self) -> None:
        answers = True
        while not self._ended.wait(_GRIPPER_S):
            try:
                self._width = float(self._gripper.width)
            except Exception as error:  # noqa: BLE001 - whatever the driver raises; what is not known now is what was known last
                if answers:
                    logger.warning("the gripper doesn't answer (%s): its width stays at the last one, %g m", error, self._width)
                answers = False
            else:
                answers = True


@contextlib.contextmanager
def _answering() -> Generator[None]:
    """Whatever the driver raises is the arm's fault."""
    try:
        yield
    except RLinfError:
        raise
    except Exception as error:
        raise RobotFault("robot", f"the arm doesn't answer: {error}", "Look at it, its network and its user stop.") from error

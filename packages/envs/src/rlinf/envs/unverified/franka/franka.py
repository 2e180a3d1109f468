"""The registered robot `franka`. Importing this imports no driver and moves nothing."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.config import expect_range
from rlinf.core.installing import install_command
from rlinf.envs.adapters import require_packages
from rlinf.envs.realworld.robot import Robot


@dataclass(frozen=True, slots=True, kw_only=True)
class Franka:
    """A Franka arm with its hand over the `franky` driver (libfranka), for `rlinf robot serve franka robot_ip=…`.

    It ran with that driver on franky-sim's simulated arm, never on a real one. Limits, watchdog and stops are the controller's, see
    `rlinf.envs.realworld`; nothing moves before a client commands. This is no safety system: keep the user stop in your hand.
    """

    robot_ip: str
    dynamics: float = 0.5
    """Share of the arm's greatest acceleration and jerk with which it follows velocities; it brakes with all of them."""
    grip_speed: float = 0.05
    """Metres per second, of the fingers."""
    grip_force: float = 20.0
    """Newtons with which they hold what is between them."""
    realtime: bool = True
    """Insist on a real-time kernel, which an arm needs; false for a simulated arm, such as franky-sim's."""

    def check(self, place: str) -> None:
        """Refuses what makes no sense, and a missing driver; connects to nothing.

        Raises:
            ConfigError: a number is out of range.
            MissingExtra: franky is not installed.
        """
        expect_range(f"{place}.dynamics", self.dynamics, 0.0, 1.0, open_low=True)
        expect_range(f"{place}.grip_speed", self.grip_speed, 0.0, 0.1, open_low=True)
        expect_range(f"{place}.grip_force", self.grip_force, 0.0, 70.0, open_low=True)
        how = f"For a real-time kernel and your libfranka: {install_command('franky-control')}."
        require_packages("franky", place=place, how=how)

    def connect(self) -> Robot:
        """The driver, connected; the arm stands still.

        Raises:
            RobotFault: the arm doesn't answer.
        """
        self.check("robot")
        from rlinf.envs.unverified.franka._franka import FrankyArm

        return FrankyArm(self)

"""`Controller`: drives one arm at a fixed rate, within its limits, and stops it when nobody commands any more.

    command ──► judged ──► target ──► velocity ──► filtered ──► arm        every period
                              ▲
                 nothing for `watchdog_s`, an emergency stop, too much force, a fault of the arm: it brakes

It knows no clock and no network: whoever serves it (`server`) says what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.envs.realworld.arm import Floats, Pose, rotation_error, turned
from rlinf.envs.realworld.limits import Guard, Limits
from rlinf.envs.realworld.robot import Command, Reading, Robot, RobotFault

_DAMPING: Final = 0.03
"""Of the inverse of the Jacobian, in metres and radians: near a singular pose the tool is slow rather than the joints fast."""
_POSTURE: Final = 0.5
"""Per second, how fast joints that the tool leaves free return to where the arm starts."""
_SERVO: Final = 8.0
"""Per second, how fast joints approach the position that they are sent to."""
_STILL: Final = 0.02
"""Radians per second below which a joint stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How an arm is driven."""

    limits: Limits = field(default_factory=Limits)
    rate_hz: float = 100.0
    """How often the arm is driven."""
    watchdog_s: float = 0.15
    """Seconds without a command after which the arm brakes; with the time that braking takes it stands still within 200 ms."""

    def __post_init__(self) -> None:
        expect_range("rate_hz", self.rate_hz, 20.0, 1000.0)
        if not 2.0 / self.rate_hz <= self.watchdog_s <= 0.5:
            problem = f"expected two periods ({2.0 / self.rate_hz:g} s) to 0.5 s, found {self.watchdog_s:g}"
            raise ConfigError("watchdog_s", problem, "0.15 stops an arm within 200 ms.")

    @property
    def period_s(self) -> float:
        """Seconds from one tick to the next."""
        return 1.0 / self.rate_hz


class Controller:
    """See above.

    Args:
        robot: the driver; nobody else may call it.
        config: how it is driven.
    """

    def __init__(self, robot: Robot, config: ControllerConfig) -> None:
        self.robot, self.config = robot, config
        self.guard = Guard(robot.arm, config.limits)
        self.stopped = ""
        """Why the arm must not move until `recover`; "" if it may."""
        self.stops = self.watchdog_stops = 0
        self.reading: Reading
        self.pose: Pose
        self.stop_s = 0.0
        """From the last command to standstill, when a watchdog or a lost connection stopped the arm last; in ticks of the arm."""
        self.refresh()
        self._home = np.array(robot.arm.home)
        self._command: Command | None = None
        self._target: tuple[Floats, Floats] = (self.pose.position, self.pose.rotation)
        self._due = self._ticks = self._commanded_tick = 0.0
        self._expires = 0.0
        self._stopping = False

    @property
    def holding(self) -> bool:
        """Whether the arm stands still because it is told nothing, or must."""
        return self._command is None

    def submit(self, command: Command, now: float) -> str:
        """Takes a command in place of the one before.

        Args:
            command: what to do.
            now: seconds, on any clock that never goes back, the same for all calls.

        Returns:
            "" if it is carried out as it is; otherwise which limits it came upon, or why it is not: `refused: …`.
        """
        if self.stopped:
            self.guard.counts["refused"] += 1
            return f"refused: the arm is stopped ({self.stopped}) until it is told to recover"
        judged, verdict = self.guard.judge(command, self.pose)
        # A command that is refused must not leave the one before it in force.
        if judged is None:
            self.hold()
            return verdict
        if judged.kind == "tool_motion":
            # From where the tool is, but towards where it was to look, so that small errors of rotation do not add up.
            rotation = self._target[1] if self._command is not None and self._command.kind == "tool_motion" else self.pose.rotation
            self._target = self.pose.position + judged.values[:3], turned(rotation, judged.values[3:])
        self._command, self._stopping = judged, False
        self._due, self._expires = now + judged.seconds, now + self.config.watchdog_s
        self._commanded_tick = self._ticks
        return verdict

    def tick(self, now: float) -> None:
        """One period: reads the arm, and drives it or brakes; to be called `rate_hz` times a second."""
        self._ticks += 1
        try:
            self.refresh()
        except RobotFault as fault:
            self.stop(f"fault: {fault.problem}")
            self.robot.brake()
            return
        if self.guard.too_much_force(self.reading) and not self.stopped:
            self.guard.counts["force"] += 1
            self.stop(f"force: {np.linalg.norm(self.reading.force):.0f} N on the tool")
        if self._command is not None and (now >= self._expires or self._silent_s >= self.config.watchdog_s):
            self.watchdog_stops += 1
            self.lose_command()
        self._measure_stop()
        if self._command is None:
            self.robot.brake()
            return
        velocity = self.guard.filter(self._velocity(self._command, now), self.reading, self.pose)
        try:
            self.robot.drive(velocity, self._command.gripper)
        except RobotFault as fault:
            self.stop(f"fault: {fault.problem}")
            self.robot.brake()

    def hold(self) -> None:
        """Stands still until the next command."""
        self._command = None

    def lose_command(self) -> None:
        """Stands still because nobody commands any more, and measures how long that takes."""
        if self._command is not None:
            self._command, self._stopping = None, True

    def stop(self, why: str) -> None:
        """An emergency stop: the arm stands still, and stays so until `recover`."""
        # The first reason stays: what follows a stop, such as a fault of the braking arm, is not why it stands still.
        if not self.stopped:
            self.stopped = why
            self.stops += 1
        self.hold()

    def recover(self) -> None:
        """Lets the arm move again after a stop.

        Raises:
            RobotFault: the arm doesn't answer.
        """
        # Both before the stop is forgotten: an arm that still does not answer stays stopped.
        self.robot.recover()
        self.refresh()
        self.stopped = ""

    def refresh(self) -> None:
        """Reads the arm.

        Raises:
            RobotFault: it doesn't answer.
        """
        self.reading = self.robot.read()
        self.pose = self.robot.arm.pose(self.reading.joints)

    def close(self) -> None:
        """Brakes and lets go of the arm."""
        self.hold()
        self.robot.close()

    def state(self) -> dict[str, Any]:
        """What is told of the arm, for a message."""
        twist = self.pose.jacobian @ self.reading.velocity
        return {
            "joints": self.reading.joints.tolist(),
            "velocity": self.reading.velocity.tolist(),
            "force": self.reading.force.tolist(),
            "gripper": self.reading.gripper,
            "position": self.pose.position.tolist(),
            "rotation": self.pose.rotation.reshape(-1).tolist(),
            "twist": twist.tolist(),
            "stopped": self.stopped,
            "holding": self.holding,
            "stop_s": self.stop_s,
            "counts": {**self.guard.counts, "watchdog": self.watchdog_stops, "stops": self.stops},
        }

    def _velocity(self, command: Command, now: float) -> Floats:
        """What the joints should do, `[D]` radians per second."""
        if command.kind == "joint_velocity":
            return command.values
        if command.kind == "joint_position":
            wanted = _SERVO * (command.values - self.reading.joints)
        elif command.kind == "hold":
            return np.zeros(self.robot.arm.size)
        else:
            # Never in less than five periods: towards the end of a motion any small error would otherwise ask for any speed.
            wanted = self._towards_target(self.pose, self.reading, max(self._due - now, 5 * self.config.period_s))
        # What this asks for was asked for by nobody, so that it is no violation.
        return self.guard.slowed(wanted, self.pose)

    def _towards_target(self, pose: Pose, reading: Reading, seconds: float) -> Floats:
        position, rotation = self._target
        error = np.concatenate([position - pose.position, rotation_error(rotation, pose.rotation)])
        jacobian = pose.jacobian
        inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + _DAMPING**2 * np.eye(6))
        # Motions of the joints that leave the tool where it is, but for the damping: the posture costs the task nothing.
        free = np.eye(self.robot.arm.size) - inverse @ jacobian
        return inverse @ (error / seconds) + free @ (_POSTURE * (self._home - reading.joints))

    @property
    def _silent_s(self) -> float:
        """Since the last command, in periods of the arm: those that a busy machine makes up for come faster than the clock goes."""
        return (self._ticks - self._commanded_tick) * self.config.period_s

    def _measure_stop(self) -> None:
        if self._stopping and np.abs(self.reading.velocity).max() < _STILL:
            self.stop_s, self._stopping = self._silent_s, False

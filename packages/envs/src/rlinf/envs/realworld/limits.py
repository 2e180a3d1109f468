"""`Limits`: what an arm may do, and `Guard`, which holds every command and every velocity within them and counts what it did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.envs.realworld.arm import Arm, Floats, Pose
from rlinf.envs.realworld.robot import KINDS, Command, Reading

_LOOK_AHEAD_S: Final = 0.1
"""An arm at full speed needs about as long to stand still."""
_SLACK: Final = 1e-3
"""Metres by which a motion may lead out of the workspace, as its correction is not exact."""
_VALUES: Final = {"joint_velocity": 0, "joint_position": 0, "tool_motion": 6, "hold": None}
"""How many values a command has; 0: one for each joint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the arm may do, whatever it is told. They are kept by its controller, beside the robot."""

    workspace_low: tuple[float, float, float] = (0.30, -0.30, 0.01)
    """Metres, in the base frame: where the tool's point stays."""
    workspace_high: tuple[float, float, float] = (0.70, 0.30, 0.60)
    joint_margin: float = 0.05
    """Radians that the joints keep from the ends of their ranges."""
    speed: float = 0.5
    """Share of the arm's greatest joint velocities."""
    tool_speed: float = 0.5
    """Metres per second, of the tool's point."""
    force: float = 40.0
    """Newtons on the tool, above which the arm stops until `recover`."""
    on_violation: Literal["clip", "refuse"] = "clip"
    """A command that asks for more is carried out as far as the limits allow, or not at all."""

    def __post_init__(self) -> None:
        expect_range("speed", self.speed, 0.0, 1.0, open_low=True)
        expect_range("tool_speed", self.tool_speed, 0.0, 2.0, open_low=True)
        expect_range("force", self.force, 0.0, 500.0, open_low=True)
        expect_range("joint_margin", self.joint_margin, 0.0, 0.5)
        if not all(low < high for low, high in zip(self.workspace_low, self.workspace_high, strict=True)):
            problem = f"expected three numbers, each below that of workspace_high, found {self.workspace_low}"
            raise ConfigError("workspace_low", problem, f"workspace_high is {self.workspace_high}.")


COUNTED: Final = ("joint", "velocity", "workspace", "force", "refused")
"""What a guard counts: commands that came upon a limit, by limit, and those that were refused."""


class Guard:
    """Keeps an arm within its limits.

    A command is judged when it comes, and every velocity again before it is driven: what a motion leads to is known only then.

    Args:
        arm: which arm.
        limits: of this arm.
    """

    def __init__(self, arm: Arm, limits: Limits) -> None:
        self._arm, self._limits = arm, limits
        self._low = np.array(arm.joint_low) + limits.joint_margin
        self._high = np.array(arm.joint_high) - limits.joint_margin
        self._speed = np.array(arm.joint_speed) * limits.speed
        self._box = np.array(limits.workspace_low), np.array(limits.workspace_high)
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._met: set[str] = set()

    def judge(self, command: Command, pose: Pose) -> tuple[Command | None, str]:
        """The command within the limits, None if it is refused; and which limits it came upon, in words, "" for none."""
        self._met = set()
        problem = self._malformed(command)
        if problem:
            return self._refused(problem)
        values = command.values
        if command.kind == "joint_velocity":
            values = self._met_by("velocity", values, np.clip(values, -self._speed, self._speed))
        elif command.kind == "joint_position":
            values = self._met_by("joint", values, np.clip(values, self._low, self._high))
        elif command.kind == "tool_motion":
            values = self._tool_motion(command, pose)
        if not self._met:
            return command, ""
        limits = ", ".join(sorted(self._met))
        if self._limits.on_violation == "refuse":
            return self._refused(f"beyond the limits of {limits}")
        return replace(command, values=values), limits

    def filter(self, velocity: Floats, reading: Reading, pose: Pose) -> Floats:
        """Velocities `[D]` that keep joints and tool inside, as near as possible to the given ones in their direction."""
        slowed = self.slowed(velocity, pose)
        if slowed is not velocity:
            self._meet("velocity")
            velocity = slowed
        outward = self._out_of_range(velocity, reading)
        if outward.any():
            self._meet("joint")
            velocity = np.where(outward, 0.0, velocity)
        if self._leaves(velocity, pose):
            self._meet("workspace")
            velocity = self._inside(velocity, pose)
            # What mends the one may break the other; then nothing is right but to stand still.
            if self._leaves(velocity, pose) or self._out_of_range(velocity, reading).any():
                return np.zeros_like(velocity)
        return velocity

    def slowed(self, velocity: Floats, pose: Pose) -> Floats:
        """The same motion `[D]`, no faster than joints and tool may be; the same array if it is slow enough."""
        # A whole velocity is scaled, so that the tool stays on its way.
        tool_speed = float(np.linalg.norm(pose.jacobian[:3] @ velocity))
        excess = max(float((np.abs(velocity) / self._speed).max()), tool_speed / self._limits.tool_speed)
        return velocity / excess if excess > 1.0 + 1e-9 else velocity

    def too_much_force(self, reading: Reading) -> bool:
        """Whether the tool is pressed harder than it may be; counted by whoever stops for it."""
        return float(np.linalg.norm(reading.force)) > self._limits.force

    def _tool_motion(self, command: Command, pose: Pose) -> Floats:
        motion = command.values.copy()
        longest = self._limits.tool_speed * command.seconds
        length = float(np.linalg.norm(motion[:3]))
        if length > longest * (1 + 1e-6):
            self._meet("velocity")
            motion[:3] *= longest / length
        target = pose.position + motion[:3]
        low, high = self._box
        # From outside, any way that leads nearer is allowed; rounding is no violation.
        kept = np.clip(target, np.minimum(low, pose.position), np.maximum(high, pose.position))
        if np.abs(kept - target).max() > 1e-6:
            self._meet("workspace")
            motion[:3] = kept - pose.position
        return motion

    def _out_of_range(self, velocity: Floats, reading: Reading) -> NDArray[np.bool_]:
        """`[D]`, which joints would come too near to the ends of their ranges."""
        ahead = reading.joints + _LOOK_AHEAD_S * velocity
        return ((ahead < self._low) & (velocity < 0)) | ((ahead > self._high) & (velocity > 0))

    def _leaves(self, velocity: Floats, pose: Pose) -> bool:
        """Whether the tool would leave the workspace, or go further away from it."""
        tool = pose.jacobian[:3] @ velocity
        ahead, (low, high) = pose.position + _LOOK_AHEAD_S * tool, self._box
        return bool((((ahead < low - _SLACK) & (tool < 0)) | ((ahead > high + _SLACK) & (tool > 0))).any())

    def _inside(self, velocity: Floats, pose: Pose) -> Floats:
        """Takes from a velocity what would bring the tool out of the workspace within the time that it needs to stop."""
        jacobian, (low, high) = pose.jacobian[:3], self._box
        tool = jacobian @ velocity
        slowest, fastest = (low - pose.position) / _LOOK_AHEAD_S, (high - pose.position) / _LOOK_AHEAD_S
        change = np.clip(tool, np.minimum(0.0, slowest), np.maximum(0.0, fastest)) - tool
        corrected = velocity + jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 1e-6 * np.eye(3), change)
        return np.clip(corrected, -self._speed, self._speed)

    def _malformed(self, command: Command) -> str:
        expected = _VALUES.get(command.kind, -1)
        size = self._arm.size if expected == 0 else expected
        if command.kind not in KINDS:
            return f"there is no command '{command.kind}', known: {', '.join(KINDS)}"
        if size is not None and command.values.shape != (size,):
            return f"{command.kind} takes {size} numbers, found {list(command.values.shape)}"
        numbers = (*command.values.tolist(), command.seconds, 0.0 if command.gripper is None else command.gripper)
        if not np.isfinite(numbers).all() or command.seconds <= 0:
            return "a number is infinite or not a number, or its seconds are not above 0"
        return ""

    def _refused(self, problem: str) -> tuple[None, str]:
        self.counts["refused"] += 1
        return None, f"refused: {problem}"

    def _met_by(self, limit: str, asked: Floats, kept: Floats) -> Floats:
        if np.abs(asked - kept).max() > 1e-6:
            self._meet(limit)
        return kept

    def _meet(self, limit: str) -> None:
        """Counts a limit once for each command."""
        if limit not in self._met:
            self._met.add(limit)
            self.counts[limit] += 1

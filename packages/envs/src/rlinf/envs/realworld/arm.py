"""`Arm`: the geometry and the limits of a serial arm, from which follow the pose of its tool and its Jacobian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_RIGHT: Final = math.pi / 2


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the tool is, and how the joints move it."""

    position: Floats
    """`[3]`, metres in the base frame."""
    rotation: Floats
    """`[3, 3]`, the axes of the tool as columns."""
    jacobian: Floats
    """`[6, D]`: metres per second, and radians per second behind them, for one radian per second of each joint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm with D revolute joints, in the modified convention of Denavit and Hartenberg.

    The frame of joint i is that of joint i − 1, turned by αᵢ₋₁ about x, moved by aᵢ₋₁ along x, turned by qᵢ about z and moved by dᵢ
    along z. Craig, "Introduction to Robotics" (2005), section 3.4.
    """

    name: str
    links: tuple[tuple[float, float, float], ...]
    """aᵢ₋₁ and dᵢ in metres and αᵢ₋₁ in radians, of each joint."""
    tool: float
    """Metres from the last joint's frame to the tool's point, along z."""
    tool_turn: float
    """Radians by which the tool is turned about z."""
    joint_low: tuple[float, ...]
    """Radians."""
    joint_high: tuple[float, ...]
    joint_speed: tuple[float, ...]
    """Radians per second, at most."""
    torque: tuple[float, ...]
    """Newton metres, at most."""
    home: tuple[float, ...]
    """Radians: where an episode begins."""

    @property
    def size(self) -> int:
        """D."""
        return len(self.links)

    def pose(self, joints: Floats) -> Pose:
        """The pose of the tool for joint angles `[D]`, in radians."""
        rotation, position = np.eye(3), np.zeros(3)
        origins, axes = np.empty((self.size, 3)), np.empty((self.size, 3))
        for index, ((a, d, alpha), angle) in enumerate(zip(self.links, joints.tolist(), strict=True)):
            cos, sin, c, s = math.cos(alpha), math.sin(alpha), math.cos(angle), math.sin(angle)
            position = position + rotation @ np.array([a, -sin * d, cos * d])
            rotation = rotation @ np.array([[c, -s, 0.0], [cos * s, cos * c, -sin], [sin * s, sin * c, cos]])
            origins[index], axes[index] = position, rotation[:, 2]
        position = position + self.tool * rotation[:, 2]
        c, s = math.cos(self.tool_turn), math.sin(self.tool_turn)
        rotation = rotation @ np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        lever = position - origins
        # `numpy.cross` takes longer than all else here.
        linear = axes[:, [1, 2, 0]] * lever[:, [2, 0, 1]] - axes[:, [2, 0, 1]] * lever[:, [1, 2, 0]]
        jacobian = np.concatenate([linear, axes], axis=1).T
        return Pose(position, rotation, jacobian)


PANDA: Final = Arm(
    name="franka",
    links=(
        (0.0, 0.333, 0.0),
        (0.0, 0.0, -_RIGHT),
        (0.0, 0.316, _RIGHT),
        (0.0825, 0.0, _RIGHT),
        (-0.0825, 0.384, -_RIGHT),
        (0.0, 0.0, _RIGHT),
        (0.088, 0.0, _RIGHT),
    ),
    tool=0.107 + 0.1034,
    tool_turn=-math.pi / 4,
    joint_low=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
    joint_high=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
    joint_speed=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
    torque=(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
    home=(0.0, 0.15, 0.0, -2.3, 0.0, 2.45, 0.7854),
)
"""Franka's Panda with its hand: dimensions and limits as in the data sheet, the tool's point between the fingers."""


def rotation_error(wanted: Floats, found: Floats) -> Floats:
    """The turn `[3]` in radians, as axis times angle in the base frame, that brings `found` to `wanted`; exact for small ones."""
    # Half of what a rotation differs from its transpose by is its axis times the sine of its angle.
    skew = wanted @ found.T
    return 0.5 * np.array([skew[2, 1] - skew[1, 2], skew[0, 2] - skew[2, 0], skew[1, 0] - skew[0, 1]])


def turned(rotation: Floats, turn: Floats) -> Floats:
    """A rotation `[3, 3]`, turned further in the base frame by axis times angle `[3]`; Rodrigues' formula."""
    angle = float(np.linalg.norm(turn))
    if angle < 1e-12:
        return rotation
    x, y, z = (turn / angle).tolist()
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return (np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross) @ rotation

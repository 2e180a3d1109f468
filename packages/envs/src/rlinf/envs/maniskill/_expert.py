"""A scripted expert for ManiSkill's PushCube, told to its joints. Only imported when an environment is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.envs.realworld.arm import PANDA, rotation_error

Floats = NDArray[np.float64]
_ABOVE: Final = 0.08
"""Metres: how high the tool is on its way to the other side of the cube."""
_BEHIND: Final = 0.045
"""Metres from the centre of the cube to where the tool comes down."""
_NEAR: Final = 0.02
_INTO: Final = 0.04
"""Metres beyond the centre of the cube that the tool aims at when it pushes."""
_GAIN: Final = 2.5
"""The joints do less than half of what a step tells them."""
_DAMPING: Final = 0.05
_WEIGHT: Final = np.array([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
"""Where the tool is counts more than how it is turned, so that it is faster."""


def has_expert(task_id: str, control_mode: str | None, kwargs: Mapping[str, Any]) -> bool:
    """Whether the expert knows the task of a configuration, and how its robot moves."""
    return (task_id, control_mode) == ("PushCube-v1", "pd_joint_delta_pos") and "robot_uids" not in kwargs


def expert_action(simulation: Any) -> NDArray[np.float32]:
    """`[8]` in [−1, 1], what the expert does now: seven joints, and a gripper that stays closed.

    It goes behind the cube from above, comes down, and pushes until the cube is in the goal region.

    Args:
        simulation: a `BaseEnv` with one environment, for which `has_expert` holds.
    """
    joints = simulation.agent.robot.qpos[0].numpy().astype(np.float64)[: PANDA.size]
    base, cube, goal = (_position(of) for of in (simulation.agent.robot, simulation.obj, simulation.goal_region))
    pose = PANDA.pose(joints)
    tool = base + pose.position
    solved = np.linalg.norm((goal - cube)[:2]) < simulation.goal_radius / 2
    motion = np.zeros(3) if solved else _target(tool, cube) - tool
    # The gripper points down.
    turn = rotation_error(np.diag([1.0, -1.0, -1.0]), pose.rotation)
    wanted, jacobian = _WEIGHT * np.concatenate([motion, turn]), _WEIGHT[:, None] * pose.jacobian
    change = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + _DAMPING**2 * np.eye(6), wanted)
    arm = _GAIN * change / simulation.agent.controller.controllers["arm"].config.upper
    # A motion that is too fast becomes a slower one in the same direction.
    return np.append(arm / max(1.0, float(np.abs(arm).max())), -1.0).astype(np.float32)


def _target(tool: Floats, cube: Floats) -> Floats:
    """Where the tool goes next."""
    behind = cube - np.array([_BEHIND, 0.0, 0.0])
    aside = float(np.linalg.norm((behind - tool)[:2]))
    if tool[2] < _ABOVE / 2 and abs(float(tool[1] - cube[1])) < _NEAR and tool[0] < cube[0]:
        return cube + np.array([_INTO, 0.0, 0.0])
    return behind if aside < _NEAR else np.array([*behind[:2], _ABOVE])


def _position(of: Any) -> Floats:
    return of.pose.p[0].numpy().astype(np.float64)

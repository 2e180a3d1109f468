"""The franky driver. Only imported when an environment is built."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.envs.actions import compose_rotations, convert_rotation
from rlinf.envs.adapters import TEXT_LENGTH, Observation, Outcome, adapt, observation_space, picture, refuse_many, vector

if TYPE_CHECKING:
    from rlinf.envs.unverified.franka.franka import Franka, Operator

_REAL = "a real arm and a real scene are never twice the same"
_WAIVED = {
    "pure_reset": _REAL,
    "seeds": _REAL,
    "instances": "there is one arm",
    "partial_reset": "there is one arm",
}
_OPEN, _CLOSE = 0.5, -0.5
_GRIPPER_SPEED, _GRIPPER_FORCE = 0.05, 20.0
_AT_HOME = 0.02


def make(config: Franka, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    refuse_many(num_envs, "there is one arm")
    return adapt(
        lambda: _Arm(config),
        num_envs,
        max_episode_steps=limit,
        ignore_terminations=ignore_terminations,
        render=render,
        metadata={"waived": _WAIVED},
    )


class _Arm:
    """A `Simulation` that is none."""

    def __init__(self, config: Franka) -> None:
        self._franky = importlib.import_module("franky")
        self._config = config
        self._operator = _operator(config.operator)
        kernel = self._franky.RealtimeConfig.Enforce if config.realtime else self._franky.RealtimeConfig.Ignore
        self._robot = self._franky.Robot(config.robot_ip, realtime_config=kernel)
        self._gripper = self._franky.Gripper(config.robot_ip)
        self._robot.relative_dynamics_factor = config.dynamics
        margin = config.joint_margin
        self._joint_low, self._joint_high = np.array(config.joint_low) + margin, np.array(config.joint_high) - margin
        self._grip = ""
        main = None if config.image_size is None else (*config.image_size, 3)
        self.observation_space = observation_space(states=15, main=main, text=bool(config.description))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Stops the arm, waits for the operator, and moves home if there is a home.

        Raises:
            DeadlineExceeded: nobody confirmed, or the arm didn't reach home, in time.
        """
        self._robot.recover_from_errors()
        self.close()
        self._operator.await_ready(self._config.ready_seconds)
        if self._config.home is not None:
            self._go_home(np.array(self._config.home))
        self._grip = ""
        return self._observe()

    def step(self, action: NDArray[Any]) -> Outcome:
        """One motion of `step_seconds`, or none if the arm must stand still."""
        if not self._must_stop():
            self._move(np.asarray(action, np.float64))
            time.sleep(self._config.step_seconds)
        halted = self._must_stop()
        if halted:
            self.close()
        success = self._operator.solved()
        return Outcome(
            observation=self._observe(), reward=float(success), success=success, terminated=success and not halted, truncated=halted
        )

    def close(self) -> None:
        """Stops the arm."""
        self._robot.move(self._franky.CartesianStopMotion())

    def _must_stop(self) -> bool:
        joints = np.asarray(self._robot.current_joint_state.position)
        inside = ((joints > self._joint_low) & (joints < self._joint_high)).all()
        return self._operator.stopped() or not bool(inside)

    def _move(self, action: NDArray[np.float64]) -> None:
        config, pose = self._config, self._robot.current_cartesian_state.pose.end_effector_pose
        target = np.asarray(pose.translation) + config.max_translation * action[:3]
        target = np.clip(target, config.workspace_low, config.workspace_high)
        turn = convert_rotation(_shorter(action[3:6]) * config.max_rotation, "axis_angle", "quat_xyzw")
        facing = compose_rotations(turn, np.asarray(pose.quaternion, np.float64), "quat_xyzw")
        goal = self._franky.Affine(target.tolist(), facing.tolist())
        # A new motion replaces the one that is under way, so nothing is waited for.
        self._robot.move(self._franky.CartesianMotion(goal, self._franky.ReferenceType.Absolute), asynchronous=True)
        self._move_gripper(float(action[6]))

    def _move_gripper(self, command: float) -> None:
        wanted = "open" if command > _OPEN else "close" if command < _CLOSE else self._grip
        if wanted == self._grip:
            return
        self._grip = wanted
        if wanted == "open":
            self._gripper.open_async(_GRIPPER_SPEED)
        else:
            # Without so wide a tolerance only something of the width 0 would count as grasped.
            self._gripper.grasp_async(0.0, _GRIPPER_SPEED, _GRIPPER_FORCE, epsilon_outer=1.0)

    def _go_home(self, home: NDArray[np.float64]) -> None:
        deadline = time.monotonic() + self._config.ready_seconds
        self._robot.move(self._franky.JointMotion(home.tolist()), asynchronous=True)
        while np.abs(np.asarray(self._robot.current_joint_state.position) - home).max() > _AT_HOME:
            late = time.monotonic() > deadline
            if self._operator.stopped() or late:
                self._robot.move(self._franky.JointStopMotion())
                why = "the operator stopped it" if not late else f"not within {self._config.ready_seconds:.0f} s"
                raise DeadlineExceeded("env.reset", f"the arm didn't reach home: {why}", "Look at the arm, then reset again.")
            time.sleep(self._config.step_seconds)
        # All but there. A motion of another kind may not replace one that is under way.
        self._robot.join_motion(self._config.ready_seconds)

    def _observe(self) -> Observation:
        pose = self._robot.current_cartesian_state.pose.end_effector_pose
        joints = self._robot.current_joint_state.position
        observation: Observation = {"states": vector(joints, pose.translation, pose.quaternion, self._gripper.width)}
        if self._config.image_size is not None:
            observation["main_images"] = picture(self._operator.image())
        if self._config.description:
            observation["task_descriptions"] = self._config.description[:TEXT_LENGTH]
        return observation


def _shorter(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    """The axis–angle, at most 1 long."""
    return turn / max(1.0, float(np.linalg.norm(turn)))


def _operator(path: str) -> Operator:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("env.operator", f"'{path}' can't be made: {error}", "Name it module:factory.") from error

"""Robots as a vector environment. Only imported when one is built."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlinf.core.envs.robots import add_counts
from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError
from rlinf.core.process import ChildProcess, ConnectionLost
from rlinf.core.random import keyed_generator
from rlinf.envs.adapters import observation_space
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.realworld.client import ControllerClient, RobotState
from rlinf.envs.realworld.realworld import RealWorld, Simulation
from rlinf.envs.realworld.robot import ControllerLost, RobotFault
from rlinf.envs.realworld.tasks import TASKS
from rlinf.envs.spaces import Vector
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics

_STATES: Final = 23
_NEAR: Final = 0.1
"""Metres in which what is left of the way, and the reward of progress, are told."""
_AT_HOME: Final = 0.03
"""Radians."""
_OPEN, _CLOSED = 0.08, 0.0
_READY, _SUCCESS, _FAILURE = "ready", "success", "failure"
"""What a person presses at the console."""
_START_S: Final = 60.0
_REAL: Final = "an arm and its scene are never twice the same"
_STOPS: Final = {"early_truncation": "an arm that was stopped ends its episode"}

Observation = dict[str, NDArray[Any]]


def make(config: RealWorld, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> Vector:
    """An environment for each arm, behind its controller."""
    if render:
        raise ConfigError("env.render", "nothing is drawn of a robot", "Set video_cfg.save_video to false.")
    if config.controllers and num_envs > len(config.controllers):
        problem = f"{num_envs} environments, but {len(config.controllers)} controllers"
        raise ConfigError("env.controllers", problem, "Name one for each environment, or place an env worker at each robot.")
    env = RobotVectorEnv(config, num_envs, terminates=not ignore_terminations)
    return EnforceContract(EpisodeStatistics(env, limit))


class RobotVectorEnv(SequentialVectorEnv):
    """One robot for each environment; to be used inside of an `EnforceContract`."""

    def __init__(self, config: RealWorld, num_envs: int, *, terminates: bool) -> None:
        self._robots: list[RobotTask] = []

        def build(index: int) -> Callable[[], RobotTask]:
            def task() -> RobotTask:
                address = config.controllers[index] if config.controllers else None
                self._robots.append(RobotTask(config, address, terminates=terminates))
                return self._robots[-1]

            return task

        try:
            super().__init__([build(index) for index in range(num_envs)])
        except BaseException:
            # Robots that were connected before one failed.
            for robot in self._robots:
                robot.close()
            raise
        repeatable = all(robot.repeatable for robot in self._robots)
        unlike = {} if repeatable else dict.fromkeys(("pure_reset", "seeds", "instances", "place", "partial_reset"), _REAL)
        self.metadata = {**self.metadata, "waived": {**_STOPS, **unlike}}

    def expert_actions(self) -> NDArray[np.float32]:
        """What the scripted expert does now, `[N, A]`."""
        return np.stack([robot.expert_action() for robot in self._robots])

    def human_actions(self) -> NDArray[np.float32]:
        """What a person does now, `[N, A]`; not a number where nobody does."""
        return np.stack([robot.human_action() for robot in self._robots])

    def take_counts(self) -> Mapping[str, float]:
        """`robot/…`: what the controllers have counted since the last call, over all robots."""
        return {f"robot/{name}": count for name, count in add_counts(robot.take_counts() for robot in self._robots).items()}


class RobotTask(gymnasium.Env[Any, Any]):
    """One robot and its task.

    Args:
        config: see there.
        address: of its controller; None starts a simulated robot.
        terminates: whether success ends an episode.

    Raises:
        ConfigError: a real arm that nobody confirmed, or a step that is longer than the controller's watchdog.
        RobotFault: no controller answers.
    """

    def __init__(self, config: RealWorld, address: str | None, *, terminates: bool) -> None:
        self._config, self._task, self._terminates = config, TASKS[config.task], terminates
        # Before anything is started.
        made = config.classifier_maker("env")
        self._classifier = None if made is None else made(**config.success_params)
        self._process = SimulatedController(config.simulated) if address is None else None
        with ExitStack() as refused:
            if self._process is not None:
                refused.callback(self._process.close)
            self._client = ControllerClient(address or cast("SimulatedController", self._process).address)
            refused.callback(self._client.close)
            self._refuse()
            self._state: RobotState = self._client.state()
            refused.pop_all()
        self._goal = np.zeros(3)
        self._counted = dict(self._state.counts)
        low, high = np.array(self._client.info.workspace_low), np.array(self._client.info.workspace_high)
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._left = 0.0
        main = (config.camera, config.camera, 3) if config.camera else None
        self.observation_space = observation_space(states=_STATES, main=main, text=False)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (config.action_size,), np.float32)

    @property
    def repeatable(self) -> bool:
        """Whether an episode can be repeated to the bit."""
        return self._client.info.simulated and self._client.info.clock == "stepped" and self._places

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Brings the arm to where an episode begins, and draws a goal."""
        self._goal = self._task.draw(keyed_generator(int(seed or 0), "goal"))
        home = self._client.info.home
        with self._explained():
            if self._places:
                scene = self._task.scene(self._goal)
                self._state = self._patiently(lambda: self._client.place(home, scene, seed=int(seed or 0)))
            else:
                self._state = self._patiently(self._client.recover)
                self._go_home(np.array(home))
                if self._config.reset == "human":
                    self._await_human()
        self._left = self._task.distance(self._state.position, self._goal)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One motion of the tool; an arm that was stopped ends the episode."""
        config, given = self._config, np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        motion = np.zeros(6)
        motion[:3] = given[:3] * config.max_translation
        if config.max_rotation:
            motion[3:] = given[3:6] * config.max_rotation
        gripper = (_OPEN if given[-1] > 0 else _CLOSED) if config.grips else None
        with self._explained():
            self._state = self._client.act("tool_motion", motion, seconds=config.step_seconds, gripper=gripper)
        left = self._task.distance(self._state.position, self._goal)
        observation = self._observe()
        success = self._solved(observation)
        reward = float(success) + ((self._left - left) / _NEAR if config.reward_mode == "progress" else 0.0)
        self._left = left
        # A person ends what has failed, as a stop does.
        stopped = bool(self._state.stopped) or _FAILURE in self._state.keys
        return observation, reward, success and self._terminates, stopped, {"success": success}

    def expert_action(self) -> NDArray[np.float32]:
        """What the scripted expert does now, `[A]`."""
        action = np.zeros(self._config.action_size)
        motion = self._task.expert(self._state.position, self._goal) / self._config.max_translation
        # As a whole, so that it goes straight.
        action[:3] = motion / max(1.0, float(np.abs(motion).max()))
        return action.astype(np.float32)

    def human_action(self) -> NDArray[np.float32]:
        """What a person at the console does now, `[A]`; not a number while nobody does."""
        config, action = self._config, np.full(self._config.action_size, np.nan, np.float32)
        if self._state.human is None:
            return action
        motion = np.array(self._state.human) * config.step_seconds
        # First all columns alike: only the gripper's, the last one, is not written again below.
        action[:] = 1.0 if self._state.gripper > _OPEN / 2 else -1.0
        action[:3] = motion[:3] / config.max_translation
        if config.max_rotation:
            action[3:6] = motion[3:] / config.max_rotation
        return np.clip(action, -1.0, 1.0)

    def take_counts(self) -> dict[str, int]:
        """What the controller has counted since the last call."""
        before, self._counted = self._counted, dict(self._state.counts)
        # A controller that was started anew counts from 0.
        return {name: max(0, count - before.get(name, 0)) for name, count in self._counted.items()}

    def close(self) -> None:
        """Lets go of the arm, which then stands still."""
        self._client.close()
        if self._process is not None:
            self._process.close()

    @property
    def _places(self) -> bool:
        stepped = self._client.info.simulated and self._client.info.clock == "stepped"
        return self._config.reset == "place" or (self._config.reset == "auto" and stepped)

    def _refuse(self) -> None:
        info, config = self._client.info, self._config
        if not info.simulated and not config.confirm_hardware:
            remedy = "Set confirm_hardware: true when somebody stands at the arm with a hand on its stop."
            raise ConfigError("env.confirm_hardware", f"this would move a real arm, '{info.name}'", remedy)
        if config.camera and info.camera != config.camera:
            problem = f"expected a camera of {config.camera} pixels, and that of '{info.name}' has {info.camera or 'none'}"
            raise ConfigError("env.camera", problem, "Ask for as many, or serve the robot with another one.")
        if config.reset == "place" and not info.simulated:
            raise ConfigError("env.reset", "a real arm can't be placed", "Use home or human.")
        if config.step_seconds > info.watchdog_s:
            problem = f"a step of {config.step_seconds:g} s is longer than the controller's watchdog_s, {info.watchdog_s:g} s"
            raise ConfigError("env.step_seconds", problem, "The arm would stop in each step: make it shorter.")

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Inside, the loss of a simulated arm's controller is told by how its process ended."""
        try:
            yield
        except ControllerLost as lost:
            if self._process is None:
                raise
            problem = f"its simulated arm {self._process.ending()}"
            raise ControllerLost("robot", problem, "Resume the run, which starts another one.") from lost

    def _patiently(self, begin: Callable[[], RobotState]) -> RobotState:
        """Begins an episode; waits for somebody to plug in an arm that doesn't answer, or until another client is silent."""
        until = time.monotonic() + self._config.patience_s
        while True:
            try:
                return begin()
            except ControllerLost:
                # A connection that was lost does not come back.
                raise
            except RobotFault as fault:
                if time.monotonic() > until:
                    problem = f"no episode can begin: {fault.problem}; waited for {self._config.patience_s:g} s"
                    raise RobotFault("robot", problem, "Look at the robot, then resume the run.") from fault
                time.sleep(0.1)

    def _go_home(self, home: NDArray[np.float64]) -> None:
        # On the arm's clock, which is another one where it is stepped.
        until = self._state.time + self._config.patience_s
        while np.abs(self._state.joints - home).max() > _AT_HOME:
            if self._state.stopped:
                raise RobotFault("robot", f"it was stopped on its way home: {self._state.stopped}", "Look at the robot.")
            if self._state.time > until:
                problem = f"it has not come home within {self._config.patience_s:g} s"
                raise DeadlineExceeded("robot", problem, "Look at what is in its way.")
            self._state = self._client.act("joint_position", home, seconds=self._config.step_seconds)
        self._state = self._client.hold()

    def _await_human(self) -> None:
        until = time.monotonic() + self._config.patience_s
        # By commands, although the arm is to stand still: only the answer to a command takes the keys that were pressed.
        while _READY not in self._client.act("hold", [], seconds=self._config.step_seconds).keys:
            if time.monotonic() > until:
                problem = f"nobody pressed '{_READY}' at the console within {self._config.patience_s:g} s"
                raise DeadlineExceeded("robot", problem, "Start rlinf robot console beside the robot.")
        self._state = self._client.state()

    def _solved(self, observation: Observation) -> bool:
        if self._config.success == "key":
            return _SUCCESS in self._state.keys
        if self._classifier is not None:
            return bool(self._classifier(observation))
        return self._task.solved(self._state.position, self._goal)

    def _observe(self) -> Observation:
        state, info = self._state, self._client.info
        parts = (
            (state.position - self._middle) / self._half,
            (self._goal - self._middle) / self._half,
            (self._goal - state.position) / _NEAR,
            state.twist[:3] / info.tool_speed,
            state.force / info.force,
            state.joints - np.array(info.home),
            [state.gripper / _OPEN],
        )
        seen = {"main_images": self._client.frame()} if self._config.camera else {}
        return {"states": np.concatenate(parts).astype(np.float32), **seen}


class SimulatedController:
    """A process with a simulated robot and its controller, which ends with this one."""

    def __init__(self, simulation: Simulation) -> None:
        descriptor, name = tempfile.mkstemp(prefix="rlinf-robot-", suffix=".log")
        os.close(descriptor)
        self._log = Path(name)
        # Not with -m: the package has imported that module before, of which Python would warn.
        command = [sys.executable, "-P", "-c", "from rlinf.envs.realworld.server import main; main()"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._child = ChildProcess(command, env=variables, log=self._log, connect=True)
        try:
            self._child.connection.send(asdict(simulation.serving))
            answer = self._receive()
        except BaseException:
            self.close()
            raise
        self.address: str = answer["address"]

    def close(self) -> None:
        """Ends it."""
        self._child.kill()
        self._log.unlink(missing_ok=True)

    def ending(self) -> str:
        """How it ended: `was killed by SIGKILL`, with what its log says last."""
        self._child.wait(1.0)
        return self._child.cause()

    def _receive(self) -> dict[str, Any]:
        try:
            message = self._child.connection.wait_for(_START_S)
        except ConnectionLost as error:
            self._child.wait(1.0)
            raise RobotFault("robot", f"the simulated robot {self._child.cause('its start')}") from error
        if message is None:
            raise DeadlineExceeded("robot", f"the simulated robot has not started within {_START_S:g} s")
        if "error" in message[0]:
            raise RLinfError("robot", str(message[0]["error"]))
        return message[0]

"""The registered environment `realworld`: robots that controllers drive. Importing this imports no simulator and moves nothing."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from rlinf.core.config import expect_range
from rlinf.core.envs.robots import HasController
from rlinf.core.errors import ConfigError
from rlinf.envs.realworld.client import parse_address
from rlinf.envs.realworld.controller import ControllerConfig
from rlinf.envs.realworld.link import LinkFaults
from rlinf.envs.realworld.robot import ROBOTS
from rlinf.envs.realworld.server import Clock, Serving
from rlinf.envs.realworld.tasks import TASKS
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The simulated robot that an environment starts for itself, with a controller in a process of its own."""

    robot: str = "simulated_franka"
    """A registered robot."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its own fields."""
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    link: LinkFaults = field(default_factory=LinkFaults)
    clock: Clock = "stepped"
    """`stepped`: its time passes in steps alone, as fast as it can be computed, and an episode can be repeated to the bit. `real`:
    as on a robot."""

    @property
    def serving(self) -> Serving:
        """What its process is told."""
        return Serving(robot=self.robot, params=self.params, controller=self.controller, link=self.link, clock=self.clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealWorld(SimulatorConfig):
    """A robot that a controller drives: a real one, whose controller runs beside it, or a simulated one behind the same interface.

    Actions in [−1, 1]: a motion of the tool in the base frame (× `max_translation`), with `max_rotation` a turn as axis times
    angle, with `grips` the gripper, open above 0. `states` `[23]`: tool and goal, relative to the workspace; what is left of
    the way; velocity of the tool and force on it, relative to their limits; joints, relative to where an episode begins; gripper.

    Where the controllers are: `controllers`; or the `controller` of the worker's hardware (`cluster.node_groups[].hardware`); or
    else each environment starts a simulated robot. Robots move at the first reset, not before.
    """

    has_expert: ClassVar[bool] = True

    task: Literal["reach", "peg"] = "reach"
    """`reach`: the tool's point to a goal in the air; 40 steps. `peg`: a peg into a socket; 80 steps."""
    controllers: tuple[str, ...] = ()
    """`host:port` of controllers that run already (`rlinf robot serve`), one for each environment."""
    simulation: Simulation = field(default_factory=Simulation)
    """The robot that is started where there is no controller."""
    confirm_hardware: bool = False
    """Must be true, or no arm is moved but a simulated one: a run on an arm is never started by mistake."""
    reward_mode: Literal["sparse", "progress"] = "sparse"
    """`sparse`: 1.0 for each step to a solved task. `progress`: in addition by how much the step came nearer, in tenths of a
    metre."""
    success: str = "task"
    """Who says that the task is solved: `task`, by the pose of the tool; `key`, a person at `rlinf robot console`; or
    `module:factory`, what makes a function from the observation to a bool, such as `rlinf.models.reward_models:frame_judge`."""
    success_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of that factory, such as `{folder: logs/classifier}`."""
    camera: int = 0
    """Pixels of the pictures `main_images`, each way, that the robot's camera takes; 0: nothing is seen but `states`."""
    reset: Literal["auto", "place", "home", "human"] = "auto"
    """How an episode begins: `place` puts a simulated arm there at once; `home` drives it there, `human` waits in addition until a
    person at the console says that the scene is ready; `auto` places a simulated arm that is stepped, and drives others."""
    step_seconds: float = 0.1
    """Seconds of one control step."""
    max_translation: float = 0.025
    """Metres of one step."""
    max_rotation: float = 0.0
    """Radians of one step; 0: the tool keeps its direction, and actions have no part for it."""
    grips: bool = False
    """Whether actions have a part for the gripper."""
    patience_s: float = 60.0
    """How long a reset waits for an arm that is to come home, that was stopped, or for a person; in seconds."""

    @property
    def observed(self) -> tuple[str, ...]:
        return ("states", "main_images") if self.camera else ("states",)

    @property
    def simulated(self) -> Simulation:
        """The robot that is started where there is no controller, with the camera that is asked for."""
        own = self.simulation
        return replace(own, params={**own.params, "camera": self.camera}) if self.camera else own

    @property
    def action_size(self) -> int:
        return 3 + 3 * (self.max_rotation > 0) + self.grips

    @property
    def episode_steps(self) -> int:
        return TASKS[self.task].max_episode_steps

    def on_hardware(self, pieces: Sequence[HasController]) -> RealWorld:
        """The same at the controllers of a worker's hardware; as it is where it names controllers itself, or there are none."""
        found = tuple(piece.controller for piece in pieces if piece.controller is not None)
        return self if self.controllers or not found else replace(self, controllers=found)

    def check(self, place: str) -> None:
        """Refuses early what `make` would refuse late; connects to nothing.

        Raises:
            ConfigError: an address or a number that can't be.
            MissingExtra: the simulator is not installed, where one is needed.
        """
        for address in self.controllers:
            parse_address(address, f"{place}.controllers")
        expect_range(f"{place}.max_translation", self.max_translation, 0.0, 0.1, open_low=True)
        expect_range(f"{place}.max_rotation", self.max_rotation, 0.0, 0.5)
        expect_range(f"{place}.patience_s", self.patience_s, 0.0, 3600.0, open_low=True)
        expect_range(f"{place}.step_seconds", self.step_seconds, 0.0, 1.0, open_low=True)
        if self.success not in ("task", "key") and ":" not in self.success:
            problem = f"expected task, key or module:factory, found '{self.success}'"
            raise ConfigError(f"{place}.success", problem, "Name a function that makes the classifier.")
        if self.success_params and ":" not in self.success:
            problem = f"'{self.success}' is given nothing"
            raise ConfigError(f"{place}.success_params", problem, "Set success: module:factory, or leave it out.")
        self.classifier_maker(place)
        self._check_simulation(place)

    def classifier_maker(self, place: str) -> Callable[..., Any] | None:
        """What makes the classifier that `success` names, imported; None where nothing judges what is observed.

        Raises:
            ConfigError: there is none, or it doesn't take `success_params`.
        """
        module, colon, name = self.success.partition(":")
        if not colon:
            return None
        try:
            made = getattr(importlib.import_module(module), name)
            inspect.signature(made).bind(**self.success_params)
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(f"{place}.success", f"'{self.success}' can't be made: {error}", "Name it module:factory.") from error
        return made

    def _check_simulation(self, place: str) -> None:
        # Only a running controller can say what it allows: `make` asks it.
        if self.controllers:
            return
        simulation, key = self.simulated, f"{place}.simulation"
        ROBOTS.get(simulation.robot, place=f"{key}.robot")
        ROBOTS.build(simulation.robot, dict(simulation.params), place=f"{key}.params").check(key)
        if self.step_seconds > simulation.controller.watchdog_s:
            problem = f"a step of {self.step_seconds:g} s is longer than the watchdog's {simulation.controller.watchdog_s:g} s"
            raise ConfigError(f"{place}.step_seconds", problem, "The arm would stop in each step: make it shorter.")

"""Meta-World: fifty tasks of a Sawyer arm on MuJoCo. Importing this imports no simulator.

Yu et al., "Meta-World: A Benchmark and Evaluation for Multi-Task and Meta Reinforcement Learning" (2019), arXiv:1910.10897.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import require_modules
from rlinf.envs.rendering.mujoco import Look, check_images
from rlinf.envs.simulator_config import SimulatorConfig

TASKS: Final[dict[str, str]] = {
    "assembly": "pick up the nut and place it onto the peg",
    "basketball": "dunk the basketball into the basket",
    "bin-picking": "grasp the block in one bin and place it into the other bin",
    "box-close": "grasp the cover and close the box with it",
    "button-press-topdown": "press the button from the top",
    "button-press-topdown-wall": "reach over the wall and press the button from the top",
    "button-press": "press the button",
    "button-press-wall": "reach around the wall and press the button",
    "coffee-button": "push the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine",
    "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial",
    "disassemble": "pick the nut off the peg",
    "door-close": "close the door",
    "door-lock": "lock the door by turning the lock clockwise",
    "door-open": "open the door",
    "door-unlock": "unlock the door by turning the lock counter-clockwise",
    "hand-insert": "insert the gripper into the hole",
    "drawer-close": "push the drawer closed",
    "drawer-open": "pull the drawer open",
    "faucet-open": "turn the faucet on",
    "faucet-close": "turn the faucet off",
    "hammer": "hammer the screw into the wall",
    "handle-press-side": "press the handle down from the side",
    "handle-press": "press the handle down",
    "handle-pull-side": "pull the handle up from the side",
    "handle-pull": "pull the handle up",
    "lever-pull": "pull the lever up",
    "pick-place-wall": "pick up the puck, go over the wall and place it at the goal",
    "pick-out-of-hole": "pick the puck out of the hole",
    "pick-place": "pick up the puck and place it at the goal",
    "plate-slide": "slide the plate into the cabinet",
    "plate-slide-side": "slide the plate into the cabinet from the side",
    "plate-slide-back": "slide the plate out of the cabinet",
    "plate-slide-back-side": "slide the plate out of the cabinet to the side",
    "peg-insert-side": "insert the peg into the hole in the side of the box",
    "peg-unplug-side": "pull the peg out of the hole in the side of the box",
    "soccer": "kick the ball into the goal",
    "stick-push": "grasp the stick and push the box with it",
    "stick-pull": "grasp the stick and pull the box with it",
    "push": "push the puck to the goal",
    "push-wall": "push the puck around the wall to the goal",
    "push-back": "pull the puck back to the goal",
    "reach": "reach the goal",
    "reach-wall": "reach around the wall to the goal",
    "shelf-place": "pick up the puck and place it on the shelf",
    "sweep-into": "sweep the puck into the hole",
    "sweep": "sweep the puck off the table",
    "window-open": "push the window open",
    "window-close": "push the window closed",
}
"""Meta-World's tasks in its own order, and what each asks for in words, which are ours: Meta-World has none."""

_MT10 = (
    "reach",
    "push",
    "pick-place",
    "door-open",
    "drawer-open",
    "drawer-close",
    "button-press-topdown",
    "peg-insert-side",
    "window-open",
    "window-close",
)
_CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaWorld(SimulatorConfig):
    """One task of Meta-World, or ten or fifty of them in one environment. Actions are `[4]`: a move of the hand and the gripper.

    A reset draws the positions of object and goal from the seed, and the task too where there are several and none is asked
    for with `options={"task": …}`. An episode terminates when the task is solved.
    """

    steps: ClassVar[int] = 500
    has_expert: ClassVar[bool] = True
    task_id: str = "reach-v3"
    """A task such as `reach-v3`, with or without the version; or `MT10` or `MT50` for the tasks of these benchmarks."""
    obs_mode: Literal["state", "rgb"] = "state"
    """`state` gives `states` `[N, 39]`, Meta-World's own: hand, gripper and objects, now and one step before, and the goal.

    `rgb` gives `main_images` `[N, H, W, 3]`, `states` `[N, 4]` (the hand's position and the gripper's opening), and
    `task_descriptions` `[N]`, which `state` gives as well where there are several tasks.
    """
    reward_mode: Literal["dense", "sparse"] = "dense"
    """`dense` is Meta-World's own, 0 to 10 for each step; `sparse` is 1 for a step to a solved task."""
    goal_observable: bool = True
    """Whether `states` holds the goal, as in the multi-task benchmarks; zeros stand there if not, as in the meta-learning ones."""
    one_hot: bool = False
    """Whether `states` ends with the task's number as a one-hot vector, for a policy that reads no texts."""
    camera: str = "corner2"
    """The camera of `main_images` and videos; images of the corner cameras, which are upside down, are turned."""
    wrist_camera: bool = False
    """Whether `rgb` gives `wrist_images` `[N, H, W, 3]`, too."""
    image_size: int = 128
    """Pixels of the images, each way."""
    look: Look = "fast"
    """How MuJoCo draws; `full` is Meta-World's own, at five times the cost and more."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of its tasks, by number."""
        names = {"MT10": _MT10, "MT50": tuple(TASKS)}
        return names.get(self.task_id.upper(), (self.task_id.removesuffix("-v3"),))

    @property
    def observed(self) -> tuple[str, ...]:
        if self.obs_mode == "state":
            return ("states", "task_descriptions") if len(self.tasks) > 1 else ("states",)
        return ("states", "task_descriptions", "main_images", *(("wrist_images",) if self.wrist_camera else ()))

    @property
    def action_size(self) -> int:
        return 4

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...] | None:
        """Of several tasks the name of each and its text, by number; None if there is one that Meta-World does not have."""
        if not set(self.tasks) <= set(TASKS):
            return None
        return tuple((name, TASKS[name]) for name in self.tasks) if len(self.tasks) > 1 else ()

    def check(self, place: str) -> None:
        """Refuses a missing simulator, an unknown task or camera, and images where MuJoCo can't draw; imports no simulator.

        Raises:
            MissingExtra: Meta-World is not installed.
            ConfigError: one of the others.
        """
        require_modules("metaworld", "mujoco", "packaging", place=place, extra="rlinf-envs[metaworld]")
        for name in self.tasks:
            if name not in TASKS:
                remedy = did_you_mean(name, ["MT10", "MT50", *TASKS], label="Tasks")
                raise ConfigError(f"{place}.task_id", f"Meta-World has no task '{self.task_id}'", remedy)
        if self.camera not in _CAMERAS:
            remedy = did_you_mean(self.camera, _CAMERAS, label="Cameras")
            raise ConfigError(f"{place}.camera", f"Meta-World has no camera '{self.camera}'", remedy)
        check_images(place, self.image_size, observed=self.obs_mode == "rgb")

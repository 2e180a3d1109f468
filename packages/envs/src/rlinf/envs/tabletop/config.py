"""The registered environment `tabletop`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from gymnasium.vector import VectorEnv

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.spaces import Vector, describe
from rlinf.envs.tabletop.pick_place import PickPlace
from rlinf.envs.tabletop.push import Push
from rlinf.envs.tabletop.reach import Reach
from rlinf.envs.tabletop.scene import Scene
from rlinf.envs.tabletop.slots import Slots
from rlinf.envs.tabletop.vector import ObsMode, RewardMode, TabletopEnv
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics
from rlinf.envs.wrappers.video import Frame, RecordVideo, Shot

# Scenes hold no state, so all environments may share them.
_SCENES: dict[str, Scene] = {scene.name: scene for scene in (Reach(), Push(), Slots(), PickPlace())}
_VIDEO_SIZE = 256
_SIZES = (8, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabletop:
    """Four small tasks on a table, vectorised in NumPy: no simulator, no assets, thousands of steps per second.

    - `reach`: move to the target; 2 actions, 30 steps;
    - `push`: slide a puck to its goal with a round finger; 2 actions, 64 steps;
    - `slots`: move to the block whose colour is named; 2 actions, 8 steps;
    - `pick_place`: put the block whose colour is named on the plate; 4 actions, the last for the gripper, 60 steps.

    Success ends an episode. Each task has a scripted expert: `env.unwrapped.expert_actions()`.
    """

    has_expert: ClassVar[bool] = True

    task: Literal["reach", "push", "slots", "pick_place"] = "push"
    obs_mode: ObsMode = "state"
    """`state`: `states` `[N, D]` float32, everything, goal included. `rgb`: `main_images` (and `wrist_images` for pick_place)
    `[N, H, W, 3]` uint8, the robot's own `states`, and `task_descriptions` `[N]` of text."""
    image_size: int = 32
    """Pixels, each way."""
    reward_mode: RewardMode = "sparse"
    """`sparse`: 1.0 for each step to a solved table. `progress`: in addition by how much the step came nearer to it; these parts
    add up to the whole distance, so that there is nothing to gain by waiting."""
    goals: tuple[str, ...] | None = None
    """The goals among which a seed draws, such as `[red]`; all if None."""

    @property
    def observed(self) -> tuple[str, ...]:
        if self.obs_mode == "state":
            return ("states",)
        wrist = ("wrist_images",) if self.task == "pick_place" else ()
        return ("states", "main_images", *wrist, "task_descriptions")

    @property
    def success_only(self) -> bool:
        return self.reward_mode == "sparse"

    @property
    def action_size(self) -> int:
        return _SCENES[self.task].action_size

    @property
    def episode_steps(self) -> int:
        return _SCENES[self.task].max_episode_steps

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...]:
        """The goal of each task that a reset can be asked for, and its text."""
        scene = _SCENES[self.task]
        return tuple((goal, scene.instruction(number)) for number, goal in enumerate(scene.goals))

    def check(self, place: str) -> None:
        """Refuses an image size outside 8 … 512 and goals that the task doesn't have.

        Raises:
            ConfigError: one of the two.
        """
        if not _SIZES[0] <= self.image_size <= _SIZES[1]:
            raise ConfigError(f"{place}.image_size", f"must lie in {list(_SIZES)}, found {self.image_size}", "64 is plenty.")
        known = _SCENES[self.task].goals
        for goal in self.goals if self.goals is not None else known:
            if goal not in known:
                hint = did_you_mean(goal, known, label="Its goals")
                raise ConfigError(f"{place}.goals", f"the task '{self.task}' has no goal '{goal}'", hint)
        if self.goals == ():
            raise ConfigError(
                f"{place}.goals", "there is no goal to draw", f"Name some of {', '.join(known)}, or leave the key out."
            )

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        self.check("env")
        scene = _SCENES[self.task]
        tables = TabletopEnv(
            scene,
            num_envs,
            obs_mode=self.obs_mode,
            image_size=self.image_size,
            reward_mode=self.reward_mode,
            goals=self.goals,
            ignore_terminations=ignore_terminations,
        )
        env: VectorEnv[Any, Any, Any] = EnforceContract(EpisodeStatistics(tables, max_episode_steps or self.episode_steps))
        return RecordVideo(env, partial(_render_frame, tables)) if render else env

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)


def _render_frame(tables: TabletopEnv, shot: Shot) -> Frame:
    return tables.frames(_VIDEO_SIZE, shot.index)[0]

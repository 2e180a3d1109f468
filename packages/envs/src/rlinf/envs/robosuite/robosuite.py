"""robosuite: manipulation on MuJoCo. Importing this imports no simulator.

Zhu et al., "robosuite: A Modular Simulation Framework and Benchmark for Robot Learning" (2020), arXiv:2009.12293.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import require_modules
from rlinf.envs.rendering.mujoco import Look, check_images
from rlinf.envs.simulator_config import SimulatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Robosuite(SimulatorConfig):
    """A task of robosuite with one arm, such as Lift or Stack.

    It needs robosuite 1.4, which hf-libero brings, or 1.5, which pulls NumPy to 1.26 and so belongs into an interpreter of its own,
    behind `rlinf.envs.remote.Remote`.
    """

    steps: ClassVar[int] = 500
    task_id: str = "Lift"
    """One of robosuite's environments."""
    robot: str = "Panda"
    controller: str = "OSC_POSE"
    """The controller, which says what an action means; `OSC_POSE` is a move and a turn of the hand, and the gripper: `[7]`."""
    reward_mode: Literal["dense", "sparse"] = "dense"
    """`dense` is robosuite's shaped reward, `sparse` its reward for success alone."""
    rebuild: bool = True
    """Whether each episode gets a new model, as robosuite itself does it, with sizes drawn anew, for about a second of a processor;
    False keeps the first model."""
    lite_physics: bool = True
    """robosuite 1.5's switch of this name, for 1.4 too: a substep computes once what it would compute three times. The same physics
    but for its rounding; False steps as 1.4 does."""
    obs_mode: Literal["state", "rgb"] = "state"
    """`state` gives `states` `[N, D]`, robosuite's proprioception and object state; `rgb` gives `main_images` and `wrist_images`
    `[N, H, W, 3]`, and `states` is the proprioception alone."""
    camera: str = "agentview"
    """What `main_images` and videos show."""
    image_size: int = 128
    """Pixels of the images, each way."""
    look: Look = "fast"
    """How MuJoCo draws."""

    def check(self, place: str) -> None:
        """Refuses a missing simulator, an unknown task, and images where MuJoCo can't draw; imports no simulator.

        Raises:
            MissingExtra: robosuite is not installed.
            ConfigError: robosuite ships no such task, or nothing can be drawn here.
        """
        require_modules("robosuite", "mujoco", place=place, extra="rlinf-envs[libero]")
        known = _shipped_tasks()
        if known and self.task_id not in known:
            remedy = did_you_mean(self.task_id, known, label="Tasks")
            raise ConfigError(f"{place}.task_id", f"robosuite has no task '{self.task_id}'", remedy)
        check_images(place, self.image_size, observed=self.obs_mode == "rgb")


def _shipped_tasks() -> list[str]:
    """The names of its environments, which are classes; of those whose name ends in `Env`, robosuite registers none."""
    spec = find_spec("robosuite")
    folders = (spec.submodule_search_locations if spec else None) or []
    files = (file for folder in folders for file in (Path(folder) / "environments").rglob("*.py"))
    named = (re.findall(r"^class (\w+)\(\w+\):", file.read_text(encoding="utf-8"), re.MULTILINE) for file in files)
    return sorted(name for names in named for name in names if not name.endswith(("Env", "Meta")))

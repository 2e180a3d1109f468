"""ManiSkill: manipulation on the SAPIEN simulator. Importing this imports no simulator.

Tao et al., "ManiSkill3: GPU Parallelized Robotics Simulation and Rendering for Generalizable Embodied AI" (2024), arXiv:2410.00425.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.installing import is_there
from rlinf.core.registry import require_modules
from rlinf.envs.simulator_config import SimulatorConfig

_SENTENCES: Mapping[str, str] = {
    "PushCube-v1": "push the cube to the goal region",
    "PullCube-v1": "pull the cube to the goal region",
    "PickCube-v1": "pick up the cube and hold it at the goal",
    "StackCube-v1": "stack the red cube on the green cube",
    "PegInsertionSide-v1": "insert the peg into the hole of the box",
    "LiftPegUpright-v1": "stand the peg upright on the table",
    "PlaceSphere-v1": "place the sphere into the bin",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PokeCube-v1": "poke the cube with the peg",
    "PullCubeTool-v1": "pull the cube closer with the tool",
    "PushT-v1": "push the T into its outline",
    "RollBall-v1": "roll the ball to the goal",
    "StackPyramid-v1": "stack the cubes into a pyramid",
    "PickSingleYCB-v1": "pick up the object and hold it at the goal",
    "TurnFaucet-v1": "turn the faucet",
    "PutCarrotOnPlateInScene-v1": "put carrot on plate",
    "PutEggplantInBasketScene-v1": "put eggplant into yellow basket",
    "PutSpoonOnTableClothInScene-v1": "put the spoon on the towel",
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1": "stack the green block on the yellow block",
}
_PUT_ON_PLATE_ROBOT = "widowx250s"
INSTALL_VULKAN = "Install mesa-vulkan-drivers 25 or later"
_ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "~/.local/share/vulkan/icd.d")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManiSkill(SimulatorConfig):
    """A ManiSkill task: on the CPU many single simulations stepped by one process, on a GPU one batched simulation.

    Success and failure end an episode unless told otherwise.

    The GPU path is written to ManiSkill's documented interface and tested against a fake that behaves as documented; it was not
    run here.
    """

    task_id: str = "PushCube-v1"
    """A registered task, or `module:task` to import the module that registers it first."""
    control_mode: str | None = "pd_joint_delta_pos"
    """What an action means; `pd_ee_delta_pos` costs more than twice as much, for its inverse kinematics. None: the robot's own
    default, which the put-on-plate tasks need."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
    """`sparse` is 1.0 in a solved state; the put-on-plate tasks have no other."""
    obs_mode: Literal["state", "rgb", "rgbd"] = "state"
    """`state` gives `states` `[N, D]`, ManiSkill's own flattened state. `rgb` gives `main_images` `[N, H, W, 3]` uint8,
    `wrist_images` where the robot has a camera on its hand, `extra_view_images` `[N, V, H, W, 3]` where there are more cameras,
    `states` (joints, tool pose, and a goal that no camera sees) and `task_descriptions`. `rgbd` adds `main_depths`, `wrist_depths`,
    `extra_view_depths`: metres, float32, the images' shape without its last axis. Images need a Vulkan driver."""
    image_size: int | None = None
    """Pixels of every camera, each way; the task's own sizes if None."""
    task_description: str | None = None
    """What `task_descriptions` say; if None, a sentence for known tasks and the words of the id for others."""
    sim_backend: Literal["auto", "cpu", "gpu"] = "cpu"
    """`gpu`: one batched simulation on CUDA. `auto`: that, if there is a CUDA device and more than one environment."""
    arrays: Literal["numpy", "torch"] = "numpy"
    """`torch`: observations stay on the simulation's device, and actions may come from there; for the GPU path only."""
    exact_resets: bool = True
    """GPU path: every environment is reset alone with its own seed, as the contract asks. False resets all chosen ones in one call,
    which takes much less time, but then a state depends on all their seeds, and equal seeds do not give equal states."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the task's constructor, such as `robot_uids`."""

    @property
    def description(self) -> str:
        """The sentence that `task_descriptions` say."""
        task_id = self.task_id.rpartition(":")[2]
        # Capitals in a row, such as YCB, are one word.
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", task_id.rpartition("-v")[0])
        return self.task_description or _SENTENCES.get(task_id) or " ".join(words).lower()

    @property
    def observed(self) -> tuple[str, ...] | None:
        """The observation keys; which cameras there are only the task knows."""
        return ("states",) if self.obs_mode == "state" else None

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...]:
        """No task can be asked for: there is one, that of `task_id`."""
        return ()

    @property
    def episode_steps(self) -> int | None:
        """The task's own step limit, by ManiSkill's source; None where it has none, is not ManiSkill's own, or that is not here."""
        task = _shipped_tasks().get(self.task_id) if is_there("mani_skill") else None
        return task.steps if task else None

    def check(self, place: str) -> None:
        """Refuses what can't work, before any work starts; reads ManiSkill's source files but imports nothing.

        Raises:
            MissingExtra: ManiSkill is not installed.
            ConfigError: no such task; its assets are not on this machine; images without a Vulkan driver; tensors on the CPU path.
        """
        require_modules("mani_skill", "sapien", place=place, extra="rlinf-envs[maniskill]")
        known = _shipped_tasks()
        if ":" not in self.task_id:
            if self.task_id not in known:
                remedy = did_you_mean(self.task_id, sorted(known), label="Tasks")
                raise ConfigError(f"{place}.task_id", f"ManiSkill has no task '{self.task_id}'", remedy)
            _refuse_missing_assets(self.task_id, known[self.task_id].assets, place)
        if self.obs_mode != "state" and not has_vulkan_driver():
            what = f"'{self.obs_mode}' needs a Vulkan driver, found none"
            raise ConfigError(f"{place}.obs_mode", what, f"{INSTALL_VULKAN}, or use obs_mode: state.")
        if self.arrays == "torch" and self.sim_backend == "cpu":
            raise ConfigError(f"{place}.arrays", "tensors are for the GPU path", "Use arrays: numpy, or sim_backend: gpu.")


class _Task(NamedTuple):
    """What the source says of a task."""

    assets: tuple[str, ...]
    """What it must fetch."""
    steps: int | None
    """Its step limit."""


@cache
def _shipped_tasks() -> dict[str, _Task]:
    """All tasks by id."""
    tasks: dict[str, _Task] = {}
    for file in (_package() / "envs").rglob("*.py"):
        # By their text: importing a task imports the simulator.
        for task, rest in re.findall(r"@register_env\(\s*[\"']([^\"']+)[\"']([^)]*)\)", file.read_text(encoding="utf-8")):
            listed = re.search(r"asset_download_ids=\[([^\]]*)\]", rest)
            assets: list[str] = re.findall(r"[\"']([^\"']+)[\"']", listed.group(1)) if listed else []
            # The put-on-plate tasks list their scenes, but not the robot that they need.
            if "bridge_v2_real2sim" in assets:
                assets.append(_PUT_ON_PLATE_ROBOT)
            limit = re.search(r"max_episode_steps=(\d+)", rest)
            tasks[task] = _Task(assets=tuple(assets), steps=int(limit.group(1)) if limit else None)
    return tasks


def _refuse_missing_assets(task_id: str, assets: tuple[str, ...], place: str) -> None:
    """ManiSkill itself would ask a question on the terminal, which no worker can answer, or download unasked."""
    folder = Path(os.environ.get("MS_ASSET_DIR", "~/.maniskill")).expanduser() / "data"
    source = (_package() / "utils" / "assets" / "data.py").read_text(encoding="utf-8")
    missing: dict[str, Path] = {}
    for asset in assets:
        entry = re.search(rf'DATA_SOURCES\["{re.escape(asset)}"\] = DataSource\((.*?)\n    \)', source, re.DOTALL)
        target = re.search(r'target_path="([^"]+)"', entry.group(1)) if entry else None
        if target and not (folder / target.group(1)).exists():
            missing[asset] = folder / target.group(1)
    if missing:
        where = ", ".join(str(path) for path in missing.values())
        fetch = " && ".join(f"python -m mani_skill.utils.download_asset {asset}" for asset in missing)
        raise ConfigError(f"{place}.task_id", f"'{task_id}' needs assets that are not in {where}", f"Fetch them: {fetch}.")


def has_vulkan_driver() -> bool:
    """Whether any driver is installed; whether it works is known when it is used."""
    # The library is NVIDIA's driver for Vulkan, too.
    if os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES") or find_library("GLX_nvidia"):
        return True
    return any(next(Path(folder).expanduser().glob("*.json"), None) for folder in _ICD_FOLDERS)


def _package() -> Path:
    spec = find_spec("mani_skill")
    folders = (spec.submodule_search_locations if spec else None) or ["mani_skill"]
    return Path(folders[0])

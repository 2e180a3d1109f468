"""LIBERO: language-conditioned manipulation of a Panda arm on robosuite. Importing this imports no simulator.

Liu et al., "LIBERO: Benchmarking Knowledge Transfer for Lifelong Robot Learning" (2023), arXiv:2306.03310.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import require_modules
from rlinf.envs.rendering.mujoco import Look, check_images
from rlinf.envs.simulator_config import SimulatorConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
_MESHES = ("articulated_objects", "stable_scanned_objects", "stable_hope_objects", "turbosquid_objects", "scenes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Libero(SimulatorConfig):
    """The tasks of a LIBERO suite. Actions are `[7]`: a move of the hand, a turn of it (axis-angle), and the gripper (1 closes).

    An episode starts in one of the initial states that LIBERO ships for the task (50, as a rule): `options={"task": …,
    "init_id": …}` name them, and the seed draws what isn't named. The reward is 1 for a step to a solved task.

    Its meshes are no part of the package: see `assets`.
    """

    suite: Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"] = "libero_spatial"
    task_ids: tuple[int, ...] | None = None
    """The numbers of the suite's tasks to play, in LIBERO's order; all if None. Tasks are numbered anew from 0 then."""
    init_ids: tuple[int, ...] | None = None
    """The numbers of the shipped initial states of a task to begin in; all if None. They are numbered anew from 0 then, too."""
    obs_mode: Literal["rgb", "state"] = "rgb"
    """`rgb` gives `main_images` `[N, H, W, 3]` (agentview), `wrist_images` `[N, H, W, 3]` (eye in hand), `task_descriptions` `[N]`
    and `states` `[N, 8]`: position and axis-angle of the hand, and the positions of both fingers.

    `state` gives `states` `[N, 8 + D]`, which ends with the simulation's whole state, as the initial states have it; a suite's
    tasks differ in D, so it takes a single one.
    """
    image_size: int = 128
    """Pixels of the images, each way."""
    image_convention: Literal["rotated", "upright", "raw"] = "rotated"
    """`raw` is upside down, as LIBERO's observations are; `rotated` is that turned by 180°, on which the published
    vision-language-action models were trained: the right way up, but a mirror image; `upright` is what one would see."""
    look: Look = "fast"
    """How MuJoCo draws; `full` is LIBERO's own, at three times the cost."""
    lite_physics: bool = True
    """Whether a substep computes once what robosuite 1.4 computes three times, as robosuite 1.5 has it: the same physics but for
    rounding, in two thirds of the time. False steps as published results did."""
    settle_steps: int = 10
    """Steps with the gripper opening and nothing else, after a reset, until the objects lie still."""
    assets: str | None = None
    """The folder of the meshes; None: the one that hf-libero itself would use, `assets` beside its code or in ~/.cache/libero."""
    max_idle: int = 1
    """How many simulations of unused tasks are kept; each has 0.25 GB or more and takes a second or more to build."""

    @property
    def observed(self) -> tuple[str, ...]:
        return ("states",) if self.obs_mode == "state" else ("main_images", "wrist_images", "states", "task_descriptions")

    def check(self, place: str) -> None:
        """Refuses what would fail later: packages, tasks, meshes, drawing; imports no simulator.

        Raises:
            MissingExtra: hf-libero is not installed.
            ConfigError: one of the others.
        """
        require_modules("libero", "robosuite", "mujoco", place=place, extra="rlinf-envs[libero]")
        if self.suite not in _SUITES:
            raise ConfigError(f"{place}.suite", f"LIBERO has no suite '{self.suite}'", did_you_mean(self.suite, _SUITES))
        count = len(suite_tasks(self.suite))
        wrong = [number for number in self.task_ids or () if not 0 <= number < count]
        if wrong or self.task_ids == ():
            problem = f"{self.suite} has no task {wrong[0]}" if wrong else "there is no task in ()"
            raise ConfigError(f"{place}.task_ids", problem, f"Its tasks are numbered 0 to {count - 1}.")
        if self.init_ids is not None and (not self.init_ids or min(self.init_ids) < 0):
            problem = f"expected numbers of initial states, found {list(self.init_ids)}"
            raise ConfigError(f"{place}.init_ids", problem, "LIBERO ships 50 for a task, as a rule, numbered from 0.")
        if self.init_ids is not None:
            for name in self.names:
                initial_states(self, name, place)
        if self.obs_mode == "state" and len(self.names) > 1:
            remedy = "Name one in task_ids, or observe images."
            raise ConfigError(f"{place}.obs_mode", f"the states of {len(self.names)} tasks differ in size", remedy)
        missing = [name for name in _MESHES if not (assets_folder(self) / name).is_dir()]
        if missing:
            remedy = (
                "Fetch the data set lerobot/libero-assets from the Hugging Face hub into that folder, "
                f"or set {place}.assets to where it is (about 422 MB)"
            )
            raise ConfigError(f"{place}.assets", f"no LIBERO meshes in {assets_folder(self)} ({missing[0]} is missing)", remedy)
        check_images(place, self.image_size, observed=self.obs_mode == "rgb")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tasks, by number: those of LIBERO's files."""
        names = suite_tasks(self.suite)
        return names if self.task_ids is None else tuple(names[number] for number in self.task_ids)

    @property
    def texts(self) -> tuple[str, ...]:
        """What its tasks ask for, by number."""
        return tuple(describe_task(name) for name in self.names)

    @property
    def has_expert(self) -> bool:
        """Whether a scripted expert knows its tasks: those of `libero_spatial`, in which a bowl is put on a plate."""
        return self.suite == "libero_spatial"

    @property
    def success_only(self) -> bool:
        return True

    @property
    def action_size(self) -> int:
        return 7

    @property
    def episode_steps(self) -> int:
        return 520 if self.suite == "libero_10" else 300

    @property
    def task_names(self) -> tuple[tuple[str, ...], ...] | None:
        """The name of each task and its text, by number; None where LIBERO's table can't be read, or has no such task."""
        try:
            return tuple(zip(self.names, self.texts, strict=True))
        except (OSError, ConfigError, IndexError):
            return None


def package_folder() -> Path:
    """Where hf-libero keeps its tasks and initial states; it isn't imported."""
    spec = find_spec("libero")
    return Path((spec.submodule_search_locations or ["."])[0] if spec else ".") / "libero"


def assets_folder(config: Libero) -> Path:
    """Where the meshes are, or should be put."""
    if config.assets is not None:
        return Path(config.assets).expanduser()
    beside = package_folder() / "assets"
    return beside if beside.is_dir() else Path(os.path.expanduser("~/.cache/libero/assets"))


def suite_tasks(suite: str) -> tuple[str, ...]:
    """The names of a suite's tasks, in LIBERO's order, read from its own table."""
    source = (package_folder() / "benchmark" / "libero_suite_task_map.py").read_text(encoding="utf-8")
    # Parsed and not imported: LIBERO's first import asks for its paths on the terminal.
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            table: dict[str, list[str]] = ast.literal_eval(node.value)
            if suite in table:
                return tuple(table[suite])
    raise ConfigError("env.suite", f"LIBERO's table has no suite '{suite}'", "Is hf-libero 0.1.4 installed?")


def describe_task(name: str) -> str:
    """A task's name in words: the scene that it may start with, in capitals, is left out."""
    words = name.split("_")
    # As in KITCHEN_SCENE3_turn_on_the_stove.
    start = next((i + 1 for i, word in enumerate(words) if word.startswith("SCENE")), 0)
    return " ".join(words[start:])


def initial_states(config: Libero, name: str, place: str = "env") -> NDArray[np.float64]:
    """The initial states of a task, `[I, D]`: those that LIBERO ships, or of them those that the configuration names.

    Raises:
        ConfigError: it names one that there is not.
    """
    from rlinf.envs.libero._initial_states import read_states

    shipped = read_states(package_folder() / "init_files" / config.suite / f"{name}.pruned_init")
    wrong = [number for number in config.init_ids or () if number >= len(shipped)]
    if wrong:
        problem = f"the task '{name}' has no initial state {wrong[0]}"
        raise ConfigError(f"{place}.init_ids", problem, f"They are numbered 0 to {len(shipped) - 1}.")
    return shipped if config.init_ids is None else shipped[list(config.init_ids)]

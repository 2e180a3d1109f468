"""Isaac Lab: batched robots on NVIDIA's Isaac Sim. Importing this imports no simulator.

Mittal et al., "Orbit: A Unified Simulation Framework for Interactive Robot Learning Environments" (2023), arXiv:2301.04195.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_importable
from rlinf.envs.adapters import require_packages
from rlinf.envs.simulator_config import SimulatorConfig
from rlinf.envs.wrappers.images import IMAGE_KEYS

_KEYS = (*IMAGE_KEYS, "states")


def _policy_states() -> dict[str, str]:
    return {"states": "policy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsaacLab(SimulatorConfig):
    """A task of Isaac Lab, batched on a GPU.

    Written to the documents of Isaac Lab 2.3 and tested against a fake that behaves as documented; it never ran on the real one,
    which needs an NVIDIA GPU. Isaac Lab resets environments inside `step` and returns what comes after; here that reset is held
    back, so that an observation is the final one, and is done when it is asked for. Isaac Sim starts with the first environment
    of a process. Videos show `main_images`, or a panel of numbers.
    """

    task_id: str = "Isaac-Lift-Cube-Franka-v0"
    """An id that `task_modules` register."""
    task_modules: tuple[str, ...] = ("isaaclab_tasks",)
    """Imported after the app has started, to register tasks."""
    device: str = "cuda:0"
    """Where the simulation runs."""
    headless: bool = True
    """No window."""
    enable_cameras: bool = False
    """Cameras render; needed for images."""
    observation: Mapping[str, str] = field(default_factory=_policy_states)
    """Embodied key → where it is in Isaac Lab's observations: a group such as `policy`, or one term of a group that is not
    concatenated, such as `policy.table_cam`. A group of several terms becomes one vector, in their order."""
    success: str | None = None
    """The termination term that means success, such as "success"; for a direct task the key of `extras` that holds it, `[N]` bool.
    None: the task knows no success."""
    action_bound: float = 1.0
    """The bound of actions, which are unbounded in Isaac Lab: [−action_bound, action_bound]."""
    task_description: str | None = None
    """What `task_descriptions` say; None: there is no such key."""
    arrays: Literal["numpy", "torch"] = "numpy"
    """`torch`: observations stay on the device, and actions may come from there."""
    exact_resets: bool = True
    """Every environment is reset alone with its own seed, as the contract asks. False resets all chosen ones in one call, which
    takes much less time, but then a state depends on all their seeds."""
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted path in the task's configuration → value, such as `observations.policy.concatenate_terms: false`."""

    def check(self, place: str) -> None:
        """Refuses a missing simulator and observation keys that mean nothing; imports neither.

        Raises:
            MissingExtra: Isaac Lab is not installed.
            ConfigError: an unknown observation key, images without cameras, or a bound that isn't positive.
        """
        how = "Install Isaac Lab as its documentation says, in its own interpreter: pip install 'isaaclab[isaacsim]'."
        require_packages("isaaclab", place=place, how=how)
        require_importable(*(name.partition(".")[0] for name in self.task_modules), place=f"{place}.task_modules")
        unknown = sorted(set(self.observation) - set(_KEYS))
        if unknown or not self.observation:
            found = f"no embodied key is named '{unknown[0]}'" if unknown else "nothing is observed"
            raise ConfigError(f"{place}.observation", found, f"Keys: {', '.join(_KEYS)}.")
        if set(self.observation) != {"states"} and not self.enable_cameras:
            raise ConfigError(f"{place}.enable_cameras", "images need cameras", "Set it to true.")
        expect_range(f"{place}.action_bound", self.action_bound, 0.0, open_low=True, remedy="1.0 is usual.")

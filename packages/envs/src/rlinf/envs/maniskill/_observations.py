"""ManiSkill's observations in the embodied words. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rlinf.core.errors import ConfigError

# ManiSkill's depths are integers, in millimetres.
_MILLIMETRES = 1000.0


def embodied(raw: Any, obs_mode: str) -> dict[str, torch.Tensor]:
    """What a `BaseEnv` observed, by embodied key; every tensor is a copy on the simulation's device.

    Args:
        raw: of `obs_mode` "state" a tensor `[N, D]`; of a visual mode the mapping with `agent`, `extra` and `sensor_data`.
        obs_mode: "state", "rgb" or "rgbd".

    Raises:
        ConfigError: cameras that must be stacked have images of different sizes.
    """
    if obs_mode == "state":
        return {"states": raw.float().clone()}
    flatten = importlib.import_module("mani_skill.utils.common").flatten_state_dict
    state = flatten({"agent": raw["agent"], "extra": raw["extra"]}, use_torch=True, device=raw["agent"]["qpos"].device)
    cameras: dict[str, Any] = raw["sensor_data"]
    found: dict[str, torch.Tensor] = {}
    for view, names in _views(list(cameras)).items():
        found[f"{view}_images"] = _stacked([cameras[name]["rgb"][..., :3] for name in names], view)
        if obs_mode == "rgbd":
            depths = [cameras[name]["depth"][..., 0].float() / _MILLIMETRES for name in names]
            found[f"{view}_depths"] = _stacked(depths, view)
    found["states"] = state.float().clone()
    return found


def numbered_states(simulation: Any) -> int:
    """How many initial states a task has by number: the put-on-plate tasks know positions × turns, the others none."""
    bridge = importlib.import_module("mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env").BaseBridgeEnv
    return len(simulation.xyz_configs) * len(simulation.quat_configs) if isinstance(simulation, bridge) else 0


def episode_id(numbers: list[int], count: int, device: torch.device) -> torch.Tensor:
    """The reset option by which the put-on-plate tasks take numbers of initial states.

    Raises:
        ConfigError: a number that the task doesn't have.
    """
    wrong = [number for number in numbers if number >= count]
    if wrong:
        raise ConfigError("env.reset", f"there is no initial state {wrong[0]}", f"The task has {count}, counted from 0.")
    return torch.as_tensor(numbers, device=device)


def _views(names: list[str]) -> dict[str, list[str]]:
    """Cameras by embodied view: what rides on a hand is `wrist`, the first other one is `main`, the rest `extra_view`."""
    wrist = [name for name in names if "hand" in name or "wrist" in name]
    # A policy expects `main_images`, even where every camera is on a hand.
    others = [name for name in names if name not in wrist] or [wrist.pop(0)]
    views = {"main": others[:1], "wrist": wrist, "extra_view": others[1:]}
    return {view: chosen for view, chosen in views.items() if chosen}


def _stacked(images: list[torch.Tensor], view: str) -> torch.Tensor:
    """`[N, H, W, …]` of one camera, `[N, V, H, W, …]` of several; extra views have the axis V even when there is one."""
    if len(images) == 1 and view != "extra_view":
        return images[0].clone()
    sizes = {tuple(image.shape) for image in images}
    if len(sizes) > 1:
        what = f"the {view} cameras have images of sizes {sorted(size[1:3] for size in sizes)}"
        raise ConfigError("env.image_size", what, "Set one size for all cameras.")
    return torch.stack(images, dim=1)

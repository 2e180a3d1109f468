"""Shorter ways through ManiSkill 3.0.1 for one environment on the CPU; every number stays the same to the bit.

ManiSkill is written for thousands of environments on a GPU. With one environment a third of a step goes into batches of one:
a pose through lists and stacked tensors, targets of joints through dozens of small tensor operations, calls between physics
steps that do nothing, and states that are joined twice. The subclasses and methods here are given only to the objects of our
own simulations, and only where those have no ways of their own; other ManiSkill environments in the process are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import mani_skill
import numpy as np
import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.agents.controllers import PDJointPosController, PDJointPosMimicController
from mani_skill.agents.controllers.base_controller import CombinedController
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.structs import Actor, Articulation, Link
from mani_skill.utils.structs.pose import Pose
from numpy.typing import NDArray

_KNOWN_VERSION = "3.0.1"
_tensor: Callable[[Any], torch.Tensor] = torch.from_numpy  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_ordinary: Any = BaseEnv
_set_actor_pose = vars(Actor)["pose"].fset
_set_link_pose = vars(Link)["pose"].fset


def shorten(simulation: Any) -> None:
    """Gives the objects of a simulation the shorter ways; does nothing for another version than the one it was checked with."""
    if mani_skill.__version__ != _KNOWN_VERSION:
        return
    for actor in simulation.scene.actors.values():
        _replace(actor, Actor, _SingleActor)
    for articulation in simulation.scene.articulations.values():
        _replace(articulation, Articulation, _SingleArticulation)
        for link in articulation.links:
            _replace(link, Link, _SingleLink)
    agent = simulation.agent
    if agent is not None and not isinstance(agent.controller, dict):
        if _inherits(agent, BaseAgent, "set_action"):
            # Without the search for NaN, which `EnforceContract` has done before.
            agent.set_action = agent.controller.set_action
        idle = [_shorten_controller(each) for each in _leaves(agent.controller)]
        between = (simulation, BaseEnv, "_before_simulation_step", "_after_simulation_step")
        if all(idle) and _inherits(agent, BaseAgent, "before_simulation_step") and _inherits(*between):
            _give(simulation, "_step_action", _step_action)
    if simulation.obs_mode == "state":
        _give(simulation, "_flatten_raw_obs", _flatten)
    if simulation._batched_rng_backend == "numpy:random_state" and simulation._batched_episode_rng is not None:
        _give(simulation, "_set_main_rng", _seed_main)
        _give(simulation, "_set_episode_rng", _seed_episode)


class _SingleActor(Actor):
    @property
    def pose(self) -> Any:
        return _pose(self._objs[0].pose)

    @pose.setter
    def pose(self, arg1: Any) -> None:
        _set_actor_pose(self, arg1)


class _SingleLink(Link):
    @property
    def pose(self) -> Any:
        return _pose(self._objs[0].entity_pose)

    @pose.setter
    def pose(self, arg1: Any) -> None:
        _set_link_pose(self, arg1)


class _SingleArticulation(Articulation):
    def set_joint_drive_targets(self, targets: Any, joints: Any = None, joint_indices: Any = None) -> None:
        for joint, target in zip(joints, targets[0].tolist(), strict=True):
            joint._objs[0].set_drive_target(target)


class _SinglePDJointPos(PDJointPosController):
    def set_action(self, action: Any) -> None:
        _aim(self, action)


class _SinglePDJointPosMimic(PDJointPosMimicController):
    def set_action(self, action: Any) -> None:
        _aim_some(self, action)


def _aim(controller: Any, action: Any) -> None:
    """Targets by NumPy, whose operations on a few numbers take a third of torch's; float32 rounds alike in both."""
    target = _wanted(controller, action)
    if controller.config.use_delta:
        target = _positions(controller) + target
    # As in the ordinary way a tensor of its own, in which a reset writes.
    controller._target_qpos = _tensor(target[None])
    _drive(controller, target)


def _aim_some(controller: Any, action: Any) -> None:
    """The same, where some joints follow others."""
    wanted, target = _wanted(controller, action), controller._target_qpos.numpy()[0]
    controlled = controller.control_joint_indices.numpy()
    if controller.config.use_delta:
        wanted = _positions(controller)[controlled] + wanted
    target[controlled] = wanted
    leading = target[controller.mimic_control_joint_indices.numpy()]
    target[controller.mimic_joint_indices.numpy()] = leading * controller._multiplier.numpy() + controller._offset.numpy()
    _drive(controller, target)


def _wanted(controller: Any, action: Any) -> Any:
    """`[n]`, an action `[1, n]` in the units of the controller."""
    wanted = action.numpy()[0]
    if not controller._normalize_action:
        return wanted
    low, high = controller.action_space_low.numpy(), controller.action_space_high.numpy()
    return 0.5 * (high + low) + 0.5 * (high - low) * np.clip(wanted, -1, 1)


def _positions(controller: Any) -> Any:
    """`[n]`, of the joints of a controller."""
    return controller.articulation._objs[0].qpos[controller.active_joint_indices.numpy()]


def _drive(controller: Any, target: Any) -> None:
    for joint, angle in zip(controller.joints, target.tolist(), strict=True):
        joint._objs[0].set_drive_target(angle)


def _leaves(controller: Any) -> list[Any]:
    return list(controller.controllers.values()) if type(controller) is CombinedController else [controller]


def _shorten_controller(controller: Any) -> bool:
    """Gives a controller its shorter way, if it has one; returns whether it has nothing to do between physics steps."""
    known = {PDJointPosController: _SinglePDJointPos, PDJointPosMimicController: _SinglePDJointPosMimic}
    # A target that goes on from the last one, or is approached in steps, is another computation.
    if type(controller) not in known or controller.config.interpolate or controller.config.use_target:
        return type(controller) in known.values()
    controller.__class__ = known[type(controller)]
    return True


def _step_action(simulation: Any, action: Any) -> Any:
    """Without the calls between physics steps that do nothing."""
    if not isinstance(action, np.ndarray) or cast("NDArray[Any]", action).shape != simulation._orig_single_action_space.shape:
        return _ordinary._step_action(simulation, action)
    batch = torch.tensor(action, dtype=torch.float32)[None]
    simulation.agent.set_action(batch)
    simulation._before_control_step()
    # A reset makes a new one.
    step = simulation.scene.px.step
    for _ in range(simulation._sim_steps_per_control):
        step()
    simulation._after_control_step()
    return batch


def _seed_main(simulation: Any, seed: Any) -> None:
    """Seeds the generator that is there: a new one first collects entropy, which takes several times as long."""
    if seed is None:
        return _ordinary._set_main_rng(simulation, seed)
    simulation._main_seed = np.atleast_1d(seed).tolist()
    for generator in (simulation._main_rng, simulation._batched_main_rng.rngs[0]):
        generator.seed(simulation._main_seed[0])
    return None


def _seed_episode(simulation: Any, seed: Any, env_idx: Any) -> None:
    """The same for the generator of an episode."""
    if seed is None:
        return _ordinary._set_episode_rng(simulation, seed, env_idx)
    simulation._episode_seed = np.atleast_1d(np.asarray(seed, dtype=np.int64))
    simulation._episode_rng = simulation._batched_episode_rng.rngs[0]
    simulation._episode_rng.seed(simulation._episode_seed[0])
    return None


def _flatten(simulation: Any, obs: Any) -> Any:
    """Joins all parts of a state at once."""
    parts = list[torch.Tensor]()
    return torch.cat(parts, dim=1) if _collect(obs, parts) else _ordinary._flatten_raw_obs(simulation, obs)


def _collect(obs: Mapping[str, Any], parts: list[torch.Tensor]) -> bool:
    """Appends the tensors of a tree as `[1, n]`; returns whether it holds nothing that is joined in another way."""
    for value in obs.values():
        if isinstance(value, dict):
            if not _collect(cast("Mapping[str, Any]", value), parts):
                return False
        elif isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bool) and value.dim() in (1, 2):
            parts.append(value if value.dim() == 2 else value[:, None])
        else:
            return False
    return bool(parts)


def _replace(item: Any, ordinary: type[Any], shorter: type[Any]) -> None:
    # A subclass may have ways of its own, and several objects need the batched one.
    if type(item) is ordinary and len(item._objs) == 1:
        item.__class__ = shorter


def _inherits(item: Any, base: type[Any], *names: str) -> bool:
    """Whether the class of an object has these methods from the base class."""
    own = cast("type[Any]", type(item))
    return all(getattr(own, name) is getattr(base, name) for name in names)


def _give(simulation: Any, name: str, shorter: Callable[..., Any]) -> None:
    if _inherits(simulation, BaseEnv, name):
        setattr(simulation, name, partial(shorter, simulation))


def _pose(pose: Any) -> Any:
    return Pose(raw_pose=_tensor(np.concatenate((pose.p, pose.q)).reshape(1, 7)))

"""Shorter ways through ManiSkill 3.0.1 for one environment on the CPU; every number stays the same to the bit.

ManiSkill is written for thousands of environments on a GPU. With one environment a fifth of a step goes into making batches of
one: a pose through lists and stacked tensors, and one tensor for each joint's target. The subclasses here are given only to
the objects of our own simulations; other ManiSkill environments in the process are not touched.
"""

from __future__ import annotations

from typing import Any

import mani_skill
import numpy as np
import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.utils.structs import Actor, Articulation, Link
from mani_skill.utils.structs.pose import Pose

_KNOWN_VERSION = "3.0.1"
_SET_ACTION = vars(BaseAgent)["set_action"]
_set_actor_pose = vars(Actor)["pose"].fset
_set_link_pose = vars(Link)["pose"].fset


def shorten(simulation: Any) -> None:
    """Gives the objects of a simulation the shorter ways; does nothing for another version than the one it was checked with."""
    if mani_skill.__version__ != _KNOWN_VERSION:
        return
    agent = simulation.agent
    if agent is not None and agent.__class__.set_action is _SET_ACTION and not isinstance(agent.controller, dict):
        # Without the search for NaN, which `EnforceContract` has done before.
        agent.set_action = agent.controller.set_action
    for actor in simulation.scene.actors.values():
        _replace(actor, Actor, _SingleActor)
    for articulation in simulation.scene.articulations.values():
        _replace(articulation, Articulation, _SingleArticulation)
        for link in articulation.links:
            _replace(link, Link, _SingleLink)


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


def _replace(item: Any, ordinary: type[Any], shorter: type[Any]) -> None:
    # A subclass may have ways of its own, and several objects need the batched one.
    if type(item) is ordinary and len(item._objs) == 1:
        item.__class__ = shorter


def _pose(pose: Any) -> Any:
    raw = np.empty((1, 7), np.float32)
    raw[0, :3] = pose.p
    raw[0, 3:] = pose.q
    return Pose(raw_pose=torch.as_tensor(raw))

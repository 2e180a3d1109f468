"""Resets of a ManiSkill simulation that remember nothing."""

from __future__ import annotations

from typing import Any

import sapien
import sapien.physx as physx


def renew_scene(simulation: Any) -> None:
    """Moves everything in a simulation into a new PhysX scene, so that what comes next depends on its state alone.

    ManiSkill's reset sets positions and velocities, but PhysX also remembers the order in which bodies touched, and solves
    contacts in that order: after episodes rich in contacts the same seed and actions gave other trajectories. Rebuilding the
    simulation (`reconfigure`) forgets too, for 170 CPU-ms; this takes less than 1.

    Args:
        simulation: a `BaseEnv` with one environment on the CPU and no renderer.
    """
    scenes: list[Any] = simulation.scene.sub_scenes
    old = scenes[0]
    # SAPIEN gives a new system whatever configuration is set for the whole process.
    physx.set_scene_config(old.physx_system.config)
    system = physx.PhysxCpuSystem()
    system.timestep = old.physx_system.timestep
    new = sapien.Scene([system])
    entities: list[Any] = list(old.entities)
    # The links of an articulation can't be in two scenes at once: all leave before the first one enters.
    for entity in entities:
        old.remove_entity(entity)
    for entity in entities:
        new.add_entity(entity)
    scenes[0] = new
    simulation.scene.px = system

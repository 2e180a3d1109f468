"""Workloads of the planner's tests."""

from __future__ import annotations

from rlinf.scheduler.planner import Channel, Component, LinearCost, Loop, Workload


def part(items: float = 8.0, item_s: float = 1.0, fixed_s: float = 0.0, **fields: object) -> Component:
    """A component whose processes have one device each."""
    return Component(items=items, costs={1: LinearCost(fixed_s=fixed_s, item_s=item_s)}, **fields)  # type: ignore[arg-type]


def pipeline(*, whole: bool, first: Component | None = None, second: Component | None = None, sync_s: float = 0.0) -> Workload:
    """`rollout` feeds `actor`."""
    return Workload(
        components={"rollout": first or part(), "actor": second or part(lockstep=True)},
        channels=(Channel(producer="rollout", consumer="actor", whole=whole),),
        sync_s=sync_s,
    )


def embodied(*, env_s: float = 1.0, rollout_s: float = 0.5, actor_s: float = 1.0, rounds: int = 4) -> Workload:
    """`env` and `rollout` answer each other, and then `actor` trains on all of it."""
    return Workload(
        components={"env": part(item_s=env_s), "rollout": part(item_s=rollout_s), "actor": part(item_s=actor_s, lockstep=True)},
        channels=(Channel(producer="env", consumer="actor", whole=True),),
        loops=(Loop(first="env", second="rollout", rounds=rounds),),
    )

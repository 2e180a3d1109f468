"""Workloads of the planner's tests."""

from __future__ import annotations

from rlinf.scheduler.planner import Channel, Component, LinearCost, Loop, Workload

EMBODIED: dict[str, object] = {
    "components": {
        "env": {
            "items": 32,
            "costs": {"1": {"fixed_s": 0.05, "item_s": 0.01, "off_line": [[2, 0.02], [8, -0.03]]}},
            "memory": {"fixed": 6e9, "simulator_per_item": 1e8},
        },
        "rollout": {
            "items": 32,
            "costs": {"1": {"fixed_s": 0.12, "item_s": 0.004}, "2": {"fixed_s": 0.07, "item_s": 0.0025}},
            "memory": {"weights": 14e9, "cache": 4e9},
            "load_s": 0.4,
            "offload_s": 0.3,
        },
        "actor": {
            "items": 32,
            "costs": {"1": {"fixed_s": 0.6, "item_s": 0.11}, "2": {"fixed_s": 0.9, "item_s": 0.05}},
            "lockstep": True,
            "memory": {"weights": 14e9, "gradients": 14e9, "optimizer": 56e9, "sharded": True},
            "load_s": 1.0,
            "offload_s": 0.8,
            "leaves": True,
        },
    },
    "loops": [{"first": "env", "second": "rollout", "rounds": 6, "singly": True}],
    "channels": [{"producer": "env", "consumer": "actor", "whole": True, "bytes_per_item": 3e7}],
    "sync_s": 0.2,
    "within_node": {"latency_s": 0.001, "bytes_per_s": 1e10},
    "between_nodes": {"latency_s": 0.01, "bytes_per_s": 1e9},
}
"""A trainer that leaves its devices, nodes that are far apart, and costs away from their line."""
REASONING: dict[str, object] = {
    "components": {
        "rollout": {
            "items": 24,
            "costs": {"1": {"fixed_s": 3.0, "item_s": 0.2}},
            "length_sigma": 1.0,
            "longest": 6,
            "places": 4,
            "memory": {"cache": 9e9},
        },
        "inference": {"items": 24, "costs": {"1": {"item_s": 0.15}}, "processes": [1, 2]},
        "reward": {"items": 24, "costs": {"1": {"fixed_s": 0.3, "item_s": 0.05}}, "processes": [1]},
        "actor": {"items": 24, "costs": {"1": {"fixed_s": 0.5, "item_s": 0.3}}, "lockstep": True, "memory": {"fixed": 7e9}},
    },
    "channels": [
        {"producer": "rollout", "consumer": "inference"},
        {"producer": "rollout", "consumer": "reward"},
        {"producer": "inference", "consumer": "actor"},
        {"producer": "reward", "consumer": "actor", "whole": True},
    ],
    "sync_s": 0.5,
}
"""Long responses with places, two components between them and the actor, and numbers of processes that are given."""


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

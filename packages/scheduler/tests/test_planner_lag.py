"""Searches with `max_lag`: as good as brute force where they say so, and bounds that no layout beats where they do not."""

from __future__ import annotations

import random
from importlib import import_module

import pytest
from planner_brute_force import check_against_brute_force

from rlinf.scheduler.planner import Channel, Component, LinearCost, Loop, Machine, Memory, Space, Workload

search_module = import_module("rlinf.scheduler.planner.search")
"""The package has a function of that name."""


def component(draw: random.Random, *, lockstep: bool, varies: bool) -> Component:
    """Of a + b·n seconds."""
    places = draw.choice((0, 1, 2, 4)) if varies else 0
    return Component(
        items=draw.choice((4, 6, 9)),
        costs={
            size: LinearCost(fixed_s=draw.uniform(0, 2), item_s=draw.uniform(0.05, 1)) for size in draw.choice(((1,), (1,), (1, 2)))
        },
        lockstep=lockstep,
        memory=Memory(weights=draw.choice((0.0, 2.0, 5.0)), fixed=draw.choice((0.0, 3.0)), sharded=draw.random() < 0.3),
        load_s=draw.uniform(0, 0.3),
        offload_s=draw.uniform(0, 0.3),
        leaves=draw.random() < 0.2,
        length_sigma=draw.choice((0.0, 0.8)) if varies else 0.0,
        longest=4.0,
        places=places,
        in_order=not places or draw.random() < 0.7,
        locks=draw.random() < 0.7,
    )


def case(seed: int) -> tuple[Workload, Machine, Space]:
    """Two components on up to four devices, or three on up to three."""
    draw = random.Random(seed)
    three = draw.random() < 0.3
    actor = component(draw, lockstep=True, varies=False)
    sync_s = draw.choice((0.0, 0.4))
    if three:
        channel = Channel(producer="env", consumer="actor", whole=draw.random() < 0.5)
        parts = {name: component(draw, lockstep=False, varies=False) for name in ("env", "rollout")}
        loop = Loop(first="env", second="rollout", rounds=2, singly=draw.random() < 0.5)
        workload = Workload(components={**parts, "actor": actor}, channels=(channel,), loops=(loop,), sync_s=sync_s)
    else:
        rollout = component(draw, lockstep=False, varies=draw.random() < 0.8)
        channel = Channel(producer="rollout", consumer="actor", whole=draw.random() < 0.5)
        workload = Workload(components={"rollout": rollout, "actor": actor}, channels=(channel,), sync_s=sync_s)
    memory = draw.choice((None, None, 8.0))
    cores = draw.choice((0, 1, 2))
    machine = Machine(devices=draw.randint(1, 3 if three else 4), memory=memory, virtual=draw.random() < 0.4, cores=cores)
    chunks = (1,) if three else draw.choice(((1,), (1, 2)))
    return workload, machine, Space(chunks=chunks, stages=(1,), max_lag=draw.randint(1, 3), seed=seed)


@pytest.mark.parametrize("seed", range(24))
def test_small_searches_with_lag_are_as_good_as_brute_force(seed: int) -> None:
    check_against_brute_force(*case(seed))


@pytest.mark.parametrize("seed", range(100, 112))
def test_what_is_not_proven_has_a_gap_that_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of large machines, on small ones."""
    monkeypatch.setattr(search_module, "EXACT", 0)
    monkeypatch.setattr(search_module, "GRID", 2)
    check_against_brute_force(*case(seed), exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_more_searches_with_lag(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, machine, space = case(seed)
    check_against_brute_force(workload, machine, space)
    monkeypatch.setattr(search_module, "EXACT", 0)
    check_against_brute_force(workload, machine, space, exact=False)

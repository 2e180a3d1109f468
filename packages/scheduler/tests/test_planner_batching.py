"""Items that are generated with places: by hand, and what asynchronous runs gain from them."""

from __future__ import annotations

import numpy as np
import pytest
from planner_cases import part, pipeline

from rlinf.core.errors import ConfigError
from rlinf.scheduler.planner import Component, LinearCost, Machine, Options, Slot, Workload, simulate
from rlinf.scheduler.planner.simulation import streams
from rlinf.scheduler.planner.simulation.batching import ContinuousBatch, generated

ONE = LinearCost(fixed_s=1.0, item_s=0.5)
APART = {"rollout": Slot(0, 1), "actor": Slot(1, 1)}


def test_a_free_place_is_filled_at_once() -> None:
    batch = ContinuousBatch(ONE, 2, np.ones(1))
    batch.add(np.array([1.0, 3.0, 2.0]), 0.0)
    # Two at a time, 2 s for a mean length: the third begins when the first ends, and ends with the second.
    assert batch.began.tolist() == [0, 0, 2]
    assert batch.done().tolist() == [2, 6, 6]
    assert batch.busy.tolist() == [6]


def test_who_comes_later_slows_down_those_that_are_there() -> None:
    batch = ContinuousBatch(ONE, 4, np.ones(1))
    batch.add(np.array([1.0, 1.0]), 0.0)
    assert batch.done().tolist() == [2, 2]
    batch.add(np.array([1.0]), 1.0)
    # Half of two in 1 s; the other half beside a third at 2.5 s a length; half of the third alone at 1.5 s.
    assert batch.done().tolist() == pytest.approx([2.25, 2.25, 3.0])
    # Nobody does anything until 5 s.
    batch.add(np.array([1.0]), 5.0)
    assert (batch.done()[-1], batch.busy[0]) == (pytest.approx(6.5), pytest.approx(4.5))


def test_processes_have_their_own_items_and_pace() -> None:
    batch = ContinuousBatch(ONE, 1, np.array([1.0, 2.0]))
    batch.add(np.array([1.0, 1.0, 2.0]), np.array([0.0, 1.0]))
    assert batch.done().tolist() == [1.5, 1.0 + 3.0, 1.5 + 3.0]
    ends, chunks = generated(ONE, 8, np.array([1.0, 1.0, 2.0]), np.zeros(2), np.ones(2), 2)
    # Items 0 and 2 are of the first process: together until 2 s, then alone. Two of three are done at 2 s.
    assert (ends.tolist(), chunks.tolist()) == ([3.5, 1.5], [2.0, 3.5])


def test_with_room_for_all_it_is_a_batch() -> None:
    """As many places as items: the same as without places, whoever shares the devices."""
    for layout in (APART, {"rollout": Slot(0, 2), "actor": Slot(0, 2)}):
        for chunks in (1, 3):
            steps = [
                simulate(
                    pipeline(whole=chunks == 1, first=part(items=9, fixed_s=1.0, length_sigma=1.0, places=places)),
                    Machine(devices=2),
                    layout,
                    Options(steps=3, chunks=chunks),
                ).ends_s
                for places in (0, 9)
            ]
            assert steps[0] == pytest.approx(steps[1])


def test_it_goes_on_to_the_next_step_with_places_that_are_free() -> None:
    def ends(places: int, lag: int) -> tuple[float, ...]:
        rollout = part(items=2, item_s=0.0, fixed_s=2.0, places=places)
        workload = pipeline(whole=True, first=rollout, second=part(items=2, item_s=0.5))
        return simulate(workload, Machine(devices=2), APART, Options(steps=4, max_lag=lag)).ends_s

    # 2 s for each pair and 1 s of training; the weights of step 0 allow step 2 from 3 s on.
    assert ends(2, 1) == pytest.approx((3, 5, 7, 9))
    # One of step 1 begins beside step 0 and ends at 2 s, the other at 4 s; step 2 has the two places that are free at 3 s.
    assert ends(3, 1) == pytest.approx((3, 5, 6, 8))
    assert ends(3, 0) == pytest.approx((3, 6, 9, 12))


@pytest.mark.parametrize(("in_order", "ends", "staleness"), [(True, (4.5, 5.0), (0.5, 1)), (False, (2.5, 4.5), (0.5, 1))])
def test_a_step_is_its_own_items_or_those_that_end_first(
    monkeypatch: pytest.MonkeyPatch, in_order: bool, ends: tuple[float, ...], staleness: tuple[float, int]
) -> None:
    drawn = [np.array([1.0, 4.0]), np.array([1.0, 1.0])]
    monkeypatch.setattr(streams, "lengths", lambda component, name, step, seed: drawn[step])
    rollout = part(items=2, item_s=0.0, fixed_s=1.0, length_sigma=1.0, places=2, in_order=in_order)
    workload = pipeline(whole=True, first=rollout, second=part(items=2, item_s=0.25))
    simulation = simulate(workload, Machine(devices=2), APART, Options(steps=2, max_lag=1))
    # Those of step 1 end at 2 and 3 s, beside the long one of step 0, which ends at 4 s.
    assert simulation.ends_s == pytest.approx(ends)
    assert simulation.staleness == pytest.approx(staleness)
    assert simulation.busy_s.tolist() == pytest.approx([4.0, 1.0])


def test_devices_that_are_shared_are_left_between_steps() -> None:
    rollout = part(items=4, item_s=0.0, fixed_s=1.0, places=2)
    workload = pipeline(whole=True, first=rollout, second=part(items=4, item_s=0.25))
    both = {"rollout": Slot(0, 1), "actor": Slot(0, 1)}
    lagging = simulate(workload, Machine(devices=1), both, Options(steps=3, max_lag=2))
    assert lagging.makespan_s == pytest.approx(3 * (2 + 1))


def gains(sigma: float) -> dict[str, float]:
    """Throughput of a small machine relative to the collocated run; twice as many items as places."""
    rollout = part(items=8 * 32, item_s=0.03, fixed_s=1.0, length_sigma=sigma, longest=16.0, places=16)
    workload = pipeline(whole=True, first=rollout, second=part(items=8 * 32, item_s=0.08, lockstep=True))
    machine, steps = Machine(devices=8), 12

    def seconds(layout: dict[str, Slot], lag: int) -> float:
        ends = simulate(workload, machine, layout, Options(steps=steps, max_lag=lag)).ends_s
        return (ends[-1] - ends[steps // 2 - 1]) / (steps - steps // 2)

    collocated = seconds({"rollout": Slot(0, 8), "actor": Slot(0, 8)}, 0)
    splits = [{"rollout": Slot(0, at), "actor": Slot(at, 8 - at)} for at in (3, 4, 5, 6)]
    return {name: collocated / min(seconds(split, lag) for split in splits) for name, lag in (("apart", 0), ("lag 4", 4))}


def test_the_asynchronous_gain_grows_with_the_spread_of_lengths() -> None:
    found = [gains(sigma) for sigma in (0.0, 0.5, 1.0, 1.3)]
    assert all(each["apart"] < 1 for each in found), "without overlap each half waits for the other"
    none, small, large, larger = (each["lag 4"] for each in found)
    assert none < 1.1
    assert none < small < large < larger
    assert large > 1.8


def test_places_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="places: expected at least 0, found -1"):
        part(places=-1)
    with pytest.raises(ConfigError, match="in_order: items end out of order with places only"):
        part(in_order=False)
    with pytest.raises(ConfigError, match=r"items of a loop have no lengths\. Set length_sigma and places"):
        Workload.of(
            {
                "components": {name: {"items": 1, "costs": {"1": {}}, "places": 1} for name in ("env", "rollout")},
                "loops": [{"first": "env", "second": "rollout", "rounds": 1}],
            }
        )
    assert Component(items=1, costs={1: LinearCost()}, places=2).varies

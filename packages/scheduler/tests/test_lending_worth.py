"""What lending devices is worth, in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from lending_simulation import Simulated

from rlinf.core.random import keyed_generator
from rlinf.scheduler.lending import Demand, Forecast, Move, MovePolicy, Never
from rlinf.scheduler.lending.policy import Phases
from rlinf.scheduler.planner import LinearCost
from rlinf.scheduler.planner.workload import Component


def _steps(policy: MovePolicy, home: dict[str, range], sigma: float, *, move_s: float = 0.03, items: int = 64) -> float:
    """Seconds of three steps on four devices; training takes about as long as the longest sequence."""
    return sum(_step(step, policy, home, sigma, move_s=move_s, items=items).seconds() for step in range(3))


def _step(
    step: int, policy: MovePolicy, home: dict[str, range], sigma: float, *, move_s: float = 0.03, items: int = 64
) -> Simulated:
    writing = Component(
        items=items,
        costs={1: LinearCost(fixed_s=1.0, item_s=0.01)},
        length_sigma=sigma,
        longest=4.0,
        load_s=move_s,
        offload_s=move_s,
    )
    training = Component(items=items, costs={1: LinearCost(item_s=3.5 * 4 / items)}, load_s=move_s, offload_s=move_s)
    drawn = keyed_generator(17, "lengths", step).lognormal(-(sigma**2) / 2, sigma, items)
    lengths = np.minimum(drawn, 4.0).tolist()
    return Simulated(lengths=lengths, writing=writing, training=training, slots=16, home=home, policy=policy)


ALL = {"rollout": range(4)}


def _best_static(sigma: float, *, move_s: float = 0.03) -> float:
    split = [_steps(Never(), {"rollout": range(k), "actor": range(k, 4)}, sigma, move_s=move_s) for k in (1, 2)]
    return min(*split, _steps(Phases(), ALL, sigma, move_s=move_s))


def test_lending_beats_the_best_static_placement_where_lengths_differ() -> None:
    assert _best_static(1.0) / _steps(Forecast(), ALL, 1.0) > 1.3


@pytest.mark.parametrize("move_s", [0.03, 0.5])
def test_where_all_are_alike_it_is_never_worse(move_s: float) -> None:
    assert _steps(Forecast(), ALL, 0.0, move_s=move_s) < 1.03 * _best_static(0.0, move_s=move_s)


class _Scheduled:
    """Gives away the emptiest device of the rollout at each of these times, and the last one when all is written."""

    def __init__(self, times: Sequence[float]) -> None:
        self._times = times
        self.step: Simulated | None = None

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        assert self.step is not None
        now, (giver, _) = self.step.now, demands
        kept = 4 - sum(now >= each for each in self._times)
        if not giver.devices or (len(giver.devices) <= kept and (giver.waiting or giver.running)):
            return None
        device = min(giver.devices, key=lambda each: (giver.devices[each], each))
        return Move(device, "rollout", "actor") if self.step.busy_until[device] <= now else None


def _best_schedule(step: int, sigma: float) -> float:
    found: list[float] = []
    for times in itertools.combinations_with_replacement((0.5, 1.0, 1.5, 2.0, 3.0), 3):
        policy = _Scheduled(times)
        policy.step = _step(step, policy, ALL, sigma)
        found.append(policy.step.seconds())
    return min(found)


@pytest.mark.parametrize(("sigma", "lost"), [(1.0, 1.04), (1.3, 1.02)])
def test_schedules_that_know_the_lengths_are_hardly_better(sigma: float, lost: float) -> None:
    """Of 35 for each step the best one, chosen with the lengths of that step: what a forecast could gain at the most."""
    assert _steps(Forecast(), ALL, sigma) < lost * sum(_best_schedule(step, sigma) for step in range(3))

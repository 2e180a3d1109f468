"""Lending devices: what the ledger counts, what policies decide, and steps on the `local` back-end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.scheduler import Cluster
from rlinf.scheduler.lending import Demand, Drained, Forecast, Item, Lender, LentWorker, Move, MovePolicy, Never, Stage
from rlinf.scheduler.lending.forecast import Snapshot, forecast, remaining
from rlinf.scheduler.lending.items import Ledger
from rlinf.scheduler.planner import LinearCost
from rlinf.scheduler.planner.workload import Component

WRITING = Component(items=8, costs={1: LinearCost(fixed_s=1.0)}, length_sigma=1.0, longest=4.0)
TRAINING = Component(items=8, costs={1: LinearCost(item_s=0.5)})


def demand(
    name: str,
    cost: Component,
    devices: dict[int, int],
    *,
    waiting: int = 0,
    coming: int = 0,
    slots: int = 4,
    progress: Sequence[float] = (),
    fixed: Sequence[int] = (),
) -> Demand:
    work = float(waiting + sum(devices.values()))
    return Demand(
        name=name,
        cost=cost,
        slots=slots,
        devices=devices,
        waiting=waiting,
        work=work,
        progress=progress,
        coming=coming,
        fixed=frozenset(fixed),
    )


# The ledger.


def test_a_ledger_counts_each_item_once() -> None:
    book = Ledger("rollout")
    book.add([Item(number=at, size=float(at)) for at in range(3)])
    assert [book.assign(0).number for _ in range(2)] == [2, 1]  # the largest first
    assert book.finish(Item(number=2).done("two"))
    assert not book.finish(Item(number=2).done("again"))
    assert book.take_back(0, [Item(number=1).cut([7], units=0.5)]) == 1
    assert book.twice == 1
    assert book.waiting[1].progress == [7]
    with pytest.raises(RLinfError, match=r"of 3 items 1 are done, 2 wait and 0 run"):
        book.check(3)
    assert book.assign(1).number == 1  # what was begun goes on first


def test_what_a_lost_worker_had_waits_as_it_was() -> None:
    book = Ledger("rollout")
    book.add([Item(number=0).cut("half", units=0.5), Item(number=1)])
    for _ in range(2):
        book.assign(3)
    assert book.take_back(3, ()) == 0
    assert book.waiting[0].progress == "half"
    assert not book.running


def test_a_number_comes_once() -> None:
    book = Ledger("rollout")
    with pytest.raises(RLinfError, match="item 5 came twice"):
        book.add([Item(number=5), Item(number=5)])


# What is left, and how it goes on.


def test_items_of_one_length_have_the_rest_of_it_left() -> None:
    assert remaining([0.25, 0.75], 0.0, math.inf) == [(pytest.approx(0.75), 1.0), (pytest.approx(0.25), 1.0)]


def test_who_has_come_far_is_long() -> None:
    """Given that half of the longest length was done, the whole is longer than the mean of all."""
    lengths = [length for _, length in remaining([2.0] * 50, 1.0, 4.0)]
    assert min(lengths) > 2.0
    assert max(lengths) == 4.0
    fresh = [length for _, length in remaining([0.0] * 50, 1.0, 4.0)]
    assert sum(fresh) / 50 == pytest.approx(0.9, abs=0.1)  # 1, less what is cut at 4
    assert remaining([12.0], 1.0, math.inf) == [(12.0, 24.0)]  # as long again, if nothing is known


def now(**changes: object) -> Snapshot:
    known = {"left": (1.0, 2.0), "lengths": (1.0, 2.0), "cost": LinearCost(fixed_s=1.0), "slots": 4, "held": 2, "devices": 4}
    return Snapshot(**{**known, "work_s": 4.0, "unit_s": 0.5, "move_s": 0.0, **changes})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_forecast_by_hand() -> None:
    # One device writes for 2 s, three train: 4 − 3·1 + 0.5 = 1.5 after 1 s, 0 after 2 s, then the last item alone for 1 s.
    assert forecast(now(), 1) == pytest.approx(3.0)
    # With 8 s of work: 5.5 after 1 s, 3.5 after 2 s, which four devices do in 0.875 s; the last item takes 1 s.
    assert forecast(now(work_s=8.0), 1) == pytest.approx(3.0)
    assert forecast(now(work_s=40.0), 1) == pytest.approx(2.0 + (40 - 3 + 0.5 - 3 + 1.0) / 4)
    assert forecast(now(slots=1), 1) == math.inf


def test_a_move_costs() -> None:
    assert forecast(now(work_s=40.0, move_s=4.0), 1) == pytest.approx(forecast(now(work_s=40.0), 1) + 1.0)


# Policies.


def test_the_off_switch() -> None:
    assert Never().next_move([demand("rollout", WRITING, {0: 0}), demand("actor", TRAINING, {}, waiting=9)]) is None


def test_what_has_drained_goes_where_items_wait() -> None:
    first, second = demand("rollout", WRITING, {0: 1, 1: 0}), demand("actor", TRAINING, {2: 1}, waiting=3, slots=1)
    assert Drained().next_move([first, second]) == Move(1, "rollout", "actor")
    assert Drained().next_move([first, demand("actor", TRAINING, {2: 0}, slots=1)]) is None
    kept = demand("rollout", WRITING, {0: 1, 1: 0}, fixed=[1])
    assert Drained().next_move([kept, second]) is None


def test_stragglers_are_put_together_and_the_device_with_fewest_goes() -> None:
    first = demand("rollout", WRITING, {0: 2, 1: 1}, progress=[1.5, 1.5, 1.5])
    second = demand("actor", TRAINING, {}, waiting=8, slots=1)
    assert Forecast().next_move([first, second]) == Move(1, "rollout", "actor")


def test_a_move_that_costs_more_than_it_brings_is_not_made() -> None:
    dear = Component(items=8, costs={1: LinearCost(item_s=0.5)}, load_s=60.0)
    first = demand("rollout", WRITING, {0: 2, 1: 1}, progress=[1.5, 1.5, 1.5])
    assert Forecast().next_move([first, demand("actor", dear, {2: 1}, waiting=8, slots=1)]) is None


def test_items_that_have_no_room_elsewhere_stay() -> None:
    first = demand("rollout", WRITING, {0: 4, 1: 4}, progress=[1.5] * 8)
    assert Forecast().next_move([first, demand("actor", TRAINING, {}, waiting=50, slots=1)]) is None


def test_a_stage_that_items_come_to_keeps_a_device() -> None:
    first = demand("rollout", WRITING, {0: 1}, progress=[1.5])
    assert Forecast().next_move([first, demand("actor", TRAINING, {}, waiting=50, slots=1)]) is None


def test_hysteresis_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match=r"hysteresis: expected at least 1, found 0\.5"):
        Forecast(hysteresis=0.5)


# Steps, in one process.


class Writer(LentWorker):
    """Counts to its item's payload, a little at a time; goes on from where others have stopped."""

    slots = 4

    def __init__(self, lags: bool = False) -> None:
        self._version, self._lags = -1, lags

    @property
    def version(self) -> int:
        return self._version

    def sync(self, version: int) -> None:
        self._version = version

    async def load(self, version: int) -> None:
        self._version = version - (self._lags and self.rank == 1)

    async def offload(self) -> None: ...

    async def process(self, item: Item) -> Item:
        written: list[int] = [*(item.progress or [])]
        while len(written) < item.payload and not self.leaving:
            await asyncio.sleep(0.001)
            written.append(item.number * 1000 + len(written))
        if len(written) < item.payload:
            return item.cut(written, units=len(written) / 10)
        return item.done(written, size=len(written) / 10)


class Adder(Writer):
    slots = 1

    async def process(self, item: Item) -> Item:
        await asyncio.sleep(0.002)
        return item.done(sum(item.payload))


class Random:
    """Moves whatever may be moved, by a fixed sequence of numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        number = self._numbers.pop() if self._numbers else -1
        giver, taker = demands if number % 2 else demands[::-1]
        free = [device for device in giver.devices if device not in giver.fixed]
        keeps = giver.running or giver.waiting or giver.coming
        return Move(free[number % len(free)], giver.name, taker.name) if number >= 0 and len(free) > bool(keeps) else None


LENGTHS = (3, 40, 5, 1, 30, 2, 7, 9)


def lender(cluster: Cluster, policy: MovePolicy, *, lags: bool = False) -> Lender:
    stages = [
        Stage(group=Writer.create_group(lags).launch(cluster, name="rollout"), cost=WRITING, slots=4),
        Stage(group=Adder.create_group().launch(cluster, name="actor"), cost=TRAINING, slots=1),
    ]
    return Lender(stages, {"rollout": [0, 1]}, policy, cluster.create_channel("results"), timeout_s=30.0)


def expected() -> list[int]:
    return [sum(number * 1000 + at for at in range(length)) for number, length in enumerate(LENGTHS)]


@settings(max_examples=5, deadline=None)
@given(numbers=st.lists(st.integers(0, 7), min_size=0, max_size=12))
def test_wherever_devices_go_every_item_is_done_once_and_alike(numbers: list[int]) -> None:
    with Cluster(cluster_cfg={"backend": "local", "virtual_accelerators": {"count": 2}, "timeout_s": 60.0}) as cluster:
        lending = lender(cluster, _Then(Random(numbers), Drained()))
        for version in range(2):
            for name in ("rollout", "actor"):
                cluster.group(name).sync(version).wait()
            report = lending.step([Item(number=at, payload=length) for at, length in enumerate(LENGTHS)], version)
            assert [item.payload for item in report.items] == expected()
            assert report.counts == {"rollout": len(LENGTHS), "actor": len(LENGTHS)}
            assert report.twice == report.recovered == 0
        lending.close()


class _Then:
    """The first policy's moves, and those of the second where it has none."""

    def __init__(self, first: MovePolicy, second: MovePolicy) -> None:
        self._first, self._second = first, second

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        return self._first.next_move(demands) or self._second.next_move(demands)


def test_devices_are_lent_and_come_home(local_cluster: Cluster) -> None:
    lending = lender(local_cluster, Forecast())
    items = [Item(number=at, payload=length) for at, length in enumerate(LENGTHS)]
    first = lending.step(items, 0)
    assert {moved.move.taker for moved in first.moves} == {"actor"}
    assert [item.payload for item in first.items] == expected()
    for name in ("rollout", "actor"):
        local_cluster.group(name).sync(1).wait()
    home = [moved.move for moved in lending.step(items, 1).moves[:2]]
    assert sorted(home, key=lambda move: move.device) == [Move(0, "actor", "rollout"), Move(1, "actor", "rollout")]
    lending.close()


class SlowToLeave(Writer):
    """Keeps device 0 until the second step has begun."""

    begun = False

    async def offload(self) -> None:
        while self.rank == 0 and not self.begun:
            await asyncio.sleep(0.001)

    def begin(self) -> None:
        self.begun = True


class LendsAll:
    """Lends device 1 at once, and device 0 when all is written."""

    begin: Callable[[], Any] | None = None
    """Lets device 0 go, in the second step."""

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        first, second = demands
        if self.begin is not None:
            self.begin().wait()
        free = first.devices.keys() - first.fixed
        if not second.devices and 1 in free:
            return Move(1, "rollout", "actor")
        written = not first.waiting and not first.running
        return Move(0, "rollout", "actor") if written and 0 in free else None


def test_a_device_that_is_still_being_left_when_a_step_ends_comes_home(local_cluster: Cluster) -> None:
    rollout = SlowToLeave.create_group().launch(local_cluster, name="rollout")
    actor = Adder.create_group().launch(local_cluster, name="actor")
    stages = [Stage(group=rollout, cost=WRITING, slots=4), Stage(group=actor, cost=TRAINING, slots=1)]
    policy = LendsAll()
    lending = Lender(stages, {"rollout": [0, 1]}, policy, local_cluster.create_channel("results"), timeout_s=30.0)
    items = [Item(number=at, payload=length) for at, length in enumerate(LENGTHS)]
    assert [moved.move for moved in lending.step(items, 0).moves] == [Move(1, "rollout", "actor")]
    assert lending.where == {0: "rollout", 1: "actor"}
    for group in (rollout, actor):
        group.sync(1).wait()
    policy.begin = rollout.execute_on(0).begin
    second = lending.step(items, 1)
    assert [item.payload for item in second.items] == expected()
    # Which of them fall into this step depends on how long device 1 takes; none is from a stage to itself.
    possible = {Move(1, "actor", "rollout"), Move(1, "rollout", "actor"), Move(0, "rollout", "actor")}
    assert {moved.move for moved in second.moves} <= possible
    lending.close()


def test_weights_of_two_versions_in_a_step_are_refused(local_cluster: Cluster) -> None:
    lending = lender(local_cluster, Drained(), lags=True)
    with pytest.raises(RLinfError, match=r"rollout, device 1: item \d was worked on with weights of versions \[4\] in a step of"):
        lending.step([Item(number=at, payload=length) for at, length in enumerate(LENGTHS)], 5)


def test_a_device_has_one_home(local_cluster: Cluster) -> None:
    group = Writer.create_group().launch(local_cluster, name="rollout")
    stages = [Stage(group=group, cost=WRITING)]
    with pytest.raises(ConfigError, match="no stage 'actor'"):
        Lender(stages, {"actor": [0]}, Never(), local_cluster.create_channel("a"))
    with pytest.raises(ConfigError, match="rollout has no worker on device 2"):
        Lender(stages, {"rollout": [0, 2]}, Never(), local_cluster.create_channel("b"))

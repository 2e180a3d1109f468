"""A worker is killed while its device moves: nothing is lost, or the failure is named."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlinf.core.errors import WorkerError
from rlinf.scheduler import Cluster
from rlinf.scheduler.lending import Demand, Item, Lender, LentWorker, Move, Stage
from rlinf.scheduler.planner import LinearCost
from rlinf.scheduler.planner.workload import Component

pytestmark = pytest.mark.ray
ITEMS = 12
COST = Component(items=ITEMS, costs={1: LinearCost(item_s=0.05)})


class Slow(LentWorker):
    """Takes its time to leave a device, in which it can be killed."""

    slots = 4

    def __init__(self, dies: Path | None) -> None:
        self._version = -1
        self._dies = dies
        """There once a worker was killed; until then the one on device 0 has unfinished items, and does not come to leave it."""

    def pid(self) -> int:
        return os.getpid()

    @property
    def version(self) -> int:
        return self._version

    async def load(self, version: int) -> None:
        await asyncio.sleep(1.0)
        self._version = version

    async def offload(self) -> None:
        await asyncio.sleep(600.0 if self._doomed() else 1.0)

    async def process(self, item: Item) -> Item:
        written: list[int] = [*(item.progress or [])]
        while len(written) < 8 and not self.leaving:
            await asyncio.sleep(0.05)
            if len(written) < 7 or not self._doomed():
                written.append(item.number)
        return item.done(sum(written)) if len(written) == 8 else item.cut(written, units=len(written) / 8)

    def _doomed(self) -> bool:
        return self.rank == 0 and self._dies is not None and not self._dies.exists()


class MovesOnce:
    """Moves device 0 from the first stage to the second, and kills a worker when that is under way.

    Args:
        victim: process id of its worker on the device.
        when: whether to kill it now.
        mark: a file that says that it was killed.
    """

    def __init__(self, victim: int, when: Callable[[], bool], mark: Path) -> None:
        self._victim, self._when, self._mark = victim, when, mark
        self._asked = self.killed = False

    def next_move(self, demands: Sequence[Demand]) -> Move | None:
        first, second = demands
        if not self._asked and len(first.devices) == 2 and first.running:
            self._asked = True
            return Move(0, first.name, second.name)
        if self._asked and not self.killed and self._when():
            os.kill(self._victim, signal.SIGKILL)
            self._mark.touch()
            self.killed = True
        return None


def _lender(cluster: Cluster, which: int, supervisor: str, mark: Path) -> tuple[Lender, MovesOnce]:
    stages: list[Stage] = []
    pids: list[int] = []
    for at, name in enumerate(("rollout", "actor")):
        restarts = {"policy": supervisor, "backoff_s": 0.1}
        group = Slow.create_group(mark if at == which == 0 else None).launch(cluster, name=name, supervisor=restarts)
        pids.append(group.pid().wait()[0])
        stages.append(Stage(group=group, cost=COST, slots=4))
    # The giver is killed while it leaves the device, the taker while it comes to it.
    policy = MovesOnce(pids[which], lambda: lender.where[0] == ("rollout", "actor")[which], mark)
    results = cluster.create_channel("results", local=True)
    lender = Lender(stages, {"rollout": [0, 1]}, policy, results, timeout_s=90.0)
    return lender, policy


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["giver", "taker"])
def test_whoever_is_killed_during_a_move_nothing_is_lost(which: int, tmp_path: Path) -> None:
    with Cluster(cluster_cfg={"virtual_accelerators": {"count": 2}, "timeout_s": 90.0}) as cluster:
        lender, policy = _lender(cluster, which, "restart", tmp_path / "killed")
        report = lender.step([Item(number=at) for at in range(ITEMS)], 3)
        assert policy.killed
        assert report.counts == {"rollout": ITEMS, "actor": ITEMS}
        assert [item.payload for item in report.items] == [8 * at for at in range(ITEMS)]
        assert report.restarts == 1
        assert report.recovered > 0 or which == 1, "the taker may not have had any yet"
        lender.close()


@pytest.mark.slow
def test_without_a_supervisor_the_failure_is_named(tmp_path: Path) -> None:
    with Cluster(cluster_cfg={"virtual_accelerators": {"count": 2}, "timeout_s": 90.0}) as cluster:
        lender, _ = _lender(cluster, 0, "fail", tmp_path / "killed")
        with pytest.raises(WorkerError, match=r"rollout\[0\]"):
            lender.step([Item(number=at) for at in range(ITEMS)], 3)

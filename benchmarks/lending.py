"""Lending devices against every static placement: `lending.py [--steps 3] [--workload long-tailed]`.

Two components of known cost, which sleep, through the real scheduler on Ray: generation, whose decoding step costs nearly the same
however many sequences a device writes, and training, which costs so much for each token. Four virtual accelerators.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.core.random import keyed_generator
from rlinf.scheduler import Cluster, WorkerGroup
from rlinf.scheduler.lending import Drained, Forecast, Item, Lender, LentWorker, MovePolicy, Never, Stage, StepReport
from rlinf.scheduler.lending.policy import Phases
from rlinf.scheduler.planner import LinearCost
from rlinf.scheduler.planner.workload import Component

RESULTS = Path(__file__).parent / "results" / "lending.json"
DEVICES, ITEMS, SLOTS = 4, 64, 16
UNIT_S = 1.0
"""Seconds of the decoding steps of a sequence of mean length, when a device writes it alone."""
SLOWER = 0.01
"""How much slower for each sequence beside it."""
TRAIN_S = 3.5 * DEVICES / ITEMS * UNIT_S
"""Seconds of training on a sequence of mean length."""
MOVE_S = 0.03
"""Seconds to load onto a device, and to leave it."""
REREAD = 0.02
"""Reading the tokens of a sequence that has moved, as a share of writing them."""
CHUNK = 0.03
"""Sequences are looked at after each such part of the mean length."""
LONGEST = 4.0
LENGTHS = {"long-tailed": 1.0, "longer-tailed": 1.3, "uniform": 0.0}


class Generation(LentWorker):
    """Writes up to `SLOTS` sequences at a time; its payloads are lengths."""

    slots = SLOTS

    def __init__(self) -> None:
        self._version, self._writing = 0, 0

    @property
    def version(self) -> int:
        return self._version

    def sync(self, version: int) -> None:
        self._version = version

    async def load(self, version: int) -> None:
        self._version = version
        await asyncio.sleep(MOVE_S)

    async def offload(self) -> None:
        await asyncio.sleep(MOVE_S)

    async def process(self, item: Item) -> Item:
        done, length = item.units, float(item.payload)
        self._writing += 1
        try:
            if done:
                await asyncio.sleep(REREAD * done * UNIT_S)
            while done < length and not self.leaving:
                part, began = min(CHUNK, length - done), time.monotonic()
                unit_s = UNIT_S * (1 + SLOWER * self._writing)
                await asyncio.sleep(part * unit_s)
                # By the clock, so that what a sleep overshoots is not added up.
                done += max(part, (time.monotonic() - began) / unit_s)
        finally:
            self._writing -= 1
        return item.done(length, size=length) if done >= length else item.cut(done, units=done)


class Training(Generation):
    """Trains on a sequence at a time."""

    slots = 1

    async def process(self, item: Item) -> Item:
        await asyncio.sleep(TRAIN_S * float(item.payload))
        return item.done(item.payload)


@dataclass(frozen=True)
class Mode:
    """A placement, and who moves devices in it."""

    name: str
    policy: MovePolicy
    home: dict[str, range]


def modes() -> list[Mode]:
    """All static placements, and lending."""
    everything = {"rollout": range(DEVICES)}
    split = [
        Mode(f"disaggregated {k} + {DEVICES - k}", Never(), {"rollout": range(k), "actor": range(k, DEVICES)})
        for k in range(1, DEVICES)
    ]
    return [
        *split,
        Mode("collocated", Phases(), everything),
        Mode("drained", Drained(), everything),
        Mode("lending", Forecast(), everything),
    ]


def lengths(sigma: float, step: int) -> list[float]:
    """Of the sequences of a step; the same in every mode."""
    drawn = keyed_generator(17, "lengths", step).lognormal(-(sigma**2) / 2, sigma, ITEMS)
    return np.minimum(drawn, LONGEST).tolist()


def bound(items: Sequence[float]) -> float:
    """Nobody ends sooner: all devices always full, and nobody before the longest item is written and trained on."""
    work = sum(items) * (UNIT_S * (1 + SLOWER * SLOTS) / SLOTS + TRAIN_S) / DEVICES
    return max(work, max(items) * (UNIT_S * (1 + SLOWER) + TRAIN_S))


def launched(cluster: Cluster) -> dict[str, WorkerGroup[Any]]:
    """One worker of each component on every device."""
    return {
        "rollout": Generation.create_group().launch(cluster, name="rollout"),
        "actor": Training.create_group().launch(cluster, name="actor"),
    }


def play(cluster: Cluster, groups: dict[str, WorkerGroup[Any]], mode: Mode, workload: str, steps: int) -> list[StepReport]:
    """Runs steps; the first one warms up, and is left out."""
    sigma = LENGTHS[workload]
    costs = {
        "rollout": (SLOTS, LinearCost(fixed_s=UNIT_S, item_s=UNIT_S * SLOWER), sigma),
        "actor": (1, LinearCost(item_s=TRAIN_S), 0.0),
    }
    stages: list[Stage] = []
    for name, (slots, cost, spread) in costs.items():
        known = Component(items=ITEMS, costs={1: cost}, load_s=MOVE_S, offload_s=MOVE_S, length_sigma=spread, longest=LONGEST)
        stages.append(Stage(group=groups[name], cost=known, slots=slots))
    results = cluster.create_channel(f"results of {mode.name}, {workload}", local=True)
    lender = Lender(stages, mode.home, mode.policy, results, timeout_s=120.0)
    found: list[StepReport] = []
    for step in range(steps + 1):
        for stage in stages:
            stage.group.sync(step).wait()
        drawn = lengths(sigma, step) if step else [0.1] * ITEMS
        report = lender.step([Item(number=at, payload=length) for at, length in enumerate(drawn)], step)
        assert report.counts == {"rollout": ITEMS, "actor": ITEMS}
        found.append(report)
    lender.close()
    return found[1:]


def compare(cluster: Cluster, groups: dict[str, WorkerGroup[Any]], workload: str, steps: int) -> dict[str, Any]:
    """All modes on one workload."""
    rows: dict[str, dict[str, float]] = {}
    for mode in modes():
        reports = play(cluster, groups, mode, workload, steps)
        seconds = [report.seconds for report in reports]
        moved = [move for report in reports for move in report.moves]
        rows[mode.name] = {
            "step_s": float(np.mean(seconds)),
            "moves": len(moved) / steps,
            "items_moved": sum(move.items for move in moved) / steps,
            "leave_s": float(np.median([move.took_s for move in moved])) if moved else 0.0,
        }
        print(f"{workload:13} {mode.name:20} {rows[mode.name]['step_s']:6.2f} s  {len(moved) / steps:4.1f} moves", flush=True)
    least = float(np.mean([bound(lengths(LENGTHS[workload], step)) for step in range(1, steps + 1)]))
    static = min(row["step_s"] for name, row in rows.items() if name.startswith(("disaggregated", "collocated")))
    lending = rows["lending"]["step_s"]
    told = f"lending is {static / lending:.2f}× as fast as the best static placement, and takes {lending / least:.2f}× the bound"
    print(f"{workload:13} bound {least:.2f} s; {told}")
    return {"rows": rows, "bound_s": least, "speedup": static / lending, "over_bound": lending / least}


def main() -> None:
    """Prints the tables, and writes them beside this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workload", choices=list(LENGTHS), action="append")
    parser.add_argument("--trace", type=Path, help="a file for the trace of all of it")
    args = parser.parse_args()
    section: dict[str, Any] = {"virtual_accelerators": {"count": DEVICES}, "heartbeat_s": 0}
    if args.trace is not None:
        section["tracer"] = {"enabled": True, "path": str(args.trace)}
    with Cluster(cluster_cfg=section) as cluster:
        groups = launched(cluster)
        for name in args.workload or LENGTHS:
            found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            found[name] = {"steps": args.steps, **compare(cluster, groups, name, args.steps)}
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

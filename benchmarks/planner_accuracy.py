"""Predicted against measured steps: `planner_accuracy.py [--steps 6]`.

Components of known cost, which sleep, run through the real scheduler: worker groups on Ray, channels, device locks, traces, on
virtual accelerators. The planner is fitted to the traces of two placements, and predicts all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rlinf.core.worker import Worker
from rlinf.scheduler import Channel, Cluster
from rlinf.scheduler.planner import Machine, Options, simulate
from rlinf.scheduler.planner.fitting import fitted, observe

RESULTS = Path(__file__).parent / "results" / "planner_accuracy.json"
ITEMS = 8
ROLLOUT_S, ACTOR_S, FIXED_S = 0.1, 0.15, 0.1
PLACEMENTS = {
    "collocated on 2": {"rollout": "0-1", "actor": "0-1"},
    "collocated on 1": {"rollout": "0", "actor": "0"},
    "1 + 1": {"rollout": "0", "actor": "1"},
    "2 + 2": {"rollout": "0-1", "actor": "2-3"},
    "1 + 2": {"rollout": "0", "actor": "1-2"},
    "2 + 1": {"rollout": "0-1", "actor": "2"},
    "collocated on 4": {"rollout": "0-3", "actor": "0-3"},
    "hybrid 2 of 4": {"rollout": "0-1", "actor": "0-3"},
}
FITTED = ("collocated on 1", "2 + 2")


class Sleeper(Worker):
    """Takes as long as its share of the items says."""

    def __init__(self, item_s: float) -> None:
        self.item_s = item_s

    def make(self, rows: Channel, consumers: int) -> None:
        """Makes its share of the items, and gives every consumer some of them."""
        self._sleep()
        for rank in range(consumers):
            rows.put(self.rank, key=rank)

    def receive(self, rows: Channel, producers: int) -> None:
        """Takes what there is for it."""
        for _ in range(producers):
            rows.get(key=self.rank)

    def train(self) -> None:
        """Trains on its share of the items."""
        self._sleep()

    def _sleep(self) -> None:
        with self.device_lock:
            time.sleep(FIXED_S + self.item_s * ITEMS / self.world_size)


def run(placement: dict[str, str], path: Path, steps: int) -> None:
    """Runs and traces one placement."""
    section = {
        "virtual_accelerators": {"count": 4},
        "component_placement": placement,
        "tracer": {"enabled": True, "path": str(path)},
    }
    with Cluster(cluster_cfg=section) as cluster:
        groups: dict[str, Any] = {}
        for name, item_s in (("rollout", ROLLOUT_S), ("actor", ACTOR_S)):
            strategy = cluster.placement.get_strategy(name)
            groups[name] = Sleeper.create_group(item_s).launch(cluster, name=name, placement_strategy=strategy)
        rollout, actor = groups["rollout"], groups["actor"]
        rows = cluster.create_channel("rows", near="actor")
        for _ in range(steps):
            made, received = rollout.make(rows, actor.world_size), actor.receive(rows, rollout.world_size)
            made.wait()
            received.wait()
            actor.train().wait()


def main() -> None:
    """Prints the table, and writes it beside this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{at}.json" for at, name in enumerate(PLACEMENTS)}
        for name, placement in PLACEMENTS.items():
            run(placement, paths[name], steps)
        workload = fitted([paths[name] for name in FITTED])[0].workload
        rows: list[dict[str, Any]] = []
        for name, path in paths.items():
            observed = observe(path)
            step_s = median(observed.step_s)
            predicted = simulate(workload, Machine(devices=4), observed.layout, Options()).step_s
            rows.append({"placement": name, "measured_s": step_s, "predicted_s": predicted, "error": predicted / step_s - 1})
            print(f"{name:18} measured {step_s:.3f} s, predicted {predicted:.3f} s, {predicted / step_s - 1:+.1%}")
    pairs = list(itertools.combinations(rows, 2))
    right = sum((a["measured_s"] < b["measured_s"]) == (a["predicted_s"] < b["predicted_s"]) for a, b in pairs)
    error = median(abs(row["error"]) for row in rows)
    print(f"median error {error:.1%}; {right} of {len(pairs)} pairs in the right order")
    RESULTS.write_text(
        json.dumps({"rows": rows, "median_error": error, "pairs_right": right, "pairs": len(pairs)}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

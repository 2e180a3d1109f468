"""How long the planner searches, and how near its certificate is: `planner_search.py [--repeats 3] [--rows 8 …]`.

Reasoning runs as of `planner_modes.py` (8, 32 or 128 responses for each device, of which 64 have a place), and an embodied run
of which the environments do not scale, on 8, 64 and 1,024 devices in nodes of 8, with lag 0, 1 and 4. Times are seconds of
processor time, the median of the repeats. Each is a process of its own, as searches remember the lengths that they have drawn.

Then what `rlinf plan` does for a run on 8 devices: the search, and the search with its explanation, which searches larger
machines, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from planner_modes import CUT, workload
from rlinf.scheduler.planner import Machine, Space, Workload, explain, search

RESULTS = Path(__file__).parent / "results" / "planner_search.json"
DEVICES = (8, 64, 1024)
LAGS = (0, 1, 4)
PLAN = "rlinf plan"


def embodied(devices: int) -> Workload:
    """16 environments for each device, of which a step costs 40 ms however few there are."""
    items = 16 * devices
    return Workload.of(
        {
            "components": {
                "env": {"items": items, "costs": {"1": {"fixed_s": 0.04, "item_s": 0.005}}},
                "rollout": {
                    "items": items,
                    "costs": {"1": {"fixed_s": 0.03, "item_s": 0.002}, "2": {"fixed_s": 0.018, "item_s": 0.001}},
                },
                "actor": {"items": items, "costs": {"1": {"fixed_s": 1.0, "item_s": 0.3}}, "lockstep": True},
            },
            "loops": [{"first": "env", "second": "rollout", "rounds": 64}],
            "channels": [{"producer": "env", "consumer": "actor", "whole": True}],
            "sync_s": 0.5,
        }
    )


CASES: dict[str, Callable[[int], Workload]] = {
    "embodied": embodied,
    "8 alike, in chunks": lambda devices: workload(devices, 8, CUT, 0.0, places=0, whole=False),
    "8": lambda devices: workload(devices, 8, CUT, 1.0),
    "32": lambda devices: workload(devices, 32, CUT, 1.0),
    "32, in chunks": lambda devices: workload(devices, 32, CUT, 1.0, whole=False),
    "128": lambda devices: workload(devices, 128, CUT, 1.0),
    "128, in batches": lambda devices: workload(devices, 128, CUT, 1.0, places=0),
    "128, first": lambda devices: workload(devices, 128, CUT, 1.0, in_order=False),
}
"""Responses for each device, and what is different; all but those that are alike have lengths of spread 1."""


def machine(devices: int) -> Machine:
    """Nodes of 8."""
    return Machine(devices=devices, per_node=8)


def searched(name: str, devices: int) -> list[dict[str, Any]]:
    """One search for each lag."""
    rows: list[dict[str, Any]] = []
    for lag in LAGS:
        if name == "128, first" and not lag:
            continue
        work = CASES[name](devices)
        began = time.process_time()
        plan = search(work, machine(devices), Space(max_lag=lag))
        took = time.process_time() - began
        found = {"step_s": plan.best.step_s, "gap": plan.gap, "simulated": plan.simulated}
        rows.append({"case": name, "devices": devices, "lag": lag, "cpu_s": took, **found})
    return rows


def planned() -> list[dict[str, Any]]:
    """What a recipe on 8 devices takes: on real ones, and on virtual ones that share 2 cores."""
    rows: list[dict[str, Any]] = []
    for cores in (0, 2):
        work, on, space = embodied(8), Machine(devices=8, virtual=cores > 0, cores=cores), Space()
        began = time.process_time()
        plan = search(work, on, space)
        found = time.process_time()
        explain(work, on, plan, space)
        explained = time.process_time()
        rows.append({"case": PLAN, "cores": cores, "search_s": found - began, "all_s": explained - began, "gap": plan.gap})
    return rows


def repeated(name: str, devices: int, repeats: int) -> list[dict[str, Any]]:
    """The rows of a few processes, with the medians of their times."""
    command = [sys.executable, __file__, "--one", name, str(devices)]
    runs: list[list[dict[str, Any]]] = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(repeats)
    ]
    times = [key for key in runs[0][0] if key in ("cpu_s", "search_s", "all_s")]
    return [{**rows[0], **{key: median(row[key] for row in rows) for key in times}} for rows in zip(*runs, strict=True)]


def main() -> None:
    """Prints the table, and writes it beside this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--one", nargs=2, metavar=("CASE", "DEVICES"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        name, devices = asked.one
        print(json.dumps(planned() if name == PLAN else searched(name, int(devices))))
        return
    rows: list[dict[str, Any]] = []
    for name in asked.rows:
        for devices in DEVICES:
            found = repeated(name, devices, asked.repeats)
            rows += found
            said = "; ".join(
                f"lag {row['lag']}: {row['cpu_s']:.2f} s, {row['simulated']} simulated, gap {row['gap']:.1%}" for row in found
            )
            print(f"{name:20} {devices:5} devices  {said}", flush=True)
    for row in repeated(PLAN, 8, asked.repeats):
        rows.append(row)
        kind = f"virtual accelerators on {row['cores']} cores" if row["cores"] else "devices"
        print(f"plan for 8 {kind}: search {row['search_s']:.3f} s, with its explanation {row['all_s']:.3f} s")
    RESULTS.write_text(json.dumps({"repeats": asked.repeats, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

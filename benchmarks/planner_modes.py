"""How the execution modes compare on machines that are not here, by simulation: `planner_modes.py [--devices 4096]`.

Language-model generation with long-tailed responses, and training on them. A sequence alone takes 60 s at the mean length, each
further one of its device 4 s (decoding is bound by memory); training takes 5 s a sequence. Response lengths are lognormal, cut at
8 times the mean; one device in a hundred takes 1.5 times as long. Every mode has the best split of devices of 15; its throughput is
relative to the collocated one.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from rlinf.core.random import keyed_generator
from rlinf.scheduler.planner import (
    Channel,
    Component,
    LinearCost,
    Machine,
    Options,
    Slot,
    Workload,
    search,
    simulate,
)

SIGMAS = (0.5, 1.0, 1.3)
PER_DEVICE = 8
STEPS = 12
SWITCH_S = 5.0
"""What a collocated step takes to load and offload weights, twice."""
RESULTS = Path(__file__).parent / "results" / "planner_modes.json"


def workload(devices: int, sigma: float, *, whole: bool) -> Workload:
    """Generation and training of 8 sequences for each device."""
    items = devices * PER_DEVICE
    rollout = Component(items=items, costs={1: LinearCost(fixed_s=60.0, item_s=4.0)}, length_sigma=sigma, longest=8.0)
    actor = Component(items=items, costs={1: LinearCost(fixed_s=1.0, item_s=5.0)}, lockstep=True)
    channel = Channel(producer="rollout", consumer="actor", whole=whole)
    return Workload(components={"rollout": rollout, "actor": actor}, channels=(channel,), sync_s=2.0)


def slowdown(devices: int) -> list[float]:
    """One device in a hundred takes 1.5 times as long."""
    slow = keyed_generator(0, "slow devices").random(devices) < 0.01
    return [1.5 if each else 1.0 for each in slow.tolist()]


def best_split(devices: int, sigma: float, options: Options, *, whole: bool) -> tuple[float, float]:
    """The shortest step of 15 splits, and the share of devices that generate in it."""
    slow, found = slowdown(devices), list[tuple[float, float]]()
    for sixteenth in range(1, 16):
        at = devices * sixteenth // 16
        layout = {"rollout": Slot(0, at), "actor": Slot(at, devices - at)}
        simulation = simulate(workload(devices, sigma, whole=whole), Machine(devices=devices), layout, options, slowdown=slow)
        found.append((simulation.step_s, sixteenth / 16))
    return min(found)


def main() -> None:
    """Prints the table, and writes it beside this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4096)
    devices = parser.parse_args().devices
    machine = Machine(devices=devices)
    modes = {
        "disaggregated, no overlap": (Options(steps=STEPS), True),
        "disaggregated, 8 chunks": (Options(steps=STEPS, chunks=8), False),
        "asynchronous, max_lag 1": (Options(steps=STEPS, max_lag=1), True),
        "asynchronous, max_lag 2": (Options(steps=STEPS, max_lag=2), True),
        "asynchronous, max_lag 4": (Options(steps=STEPS, max_lag=4), True),
    }
    rows: list[dict[str, float]] = []
    for sigma in SIGMAS:
        together = {"rollout": Slot(0, devices), "actor": Slot(0, devices)}
        base = workload(devices, sigma, whole=True)
        base = replace(base, sync_s=base.sync_s + 2 * SWITCH_S)
        collocated = simulate(base, machine, together, Options(steps=STEPS), slowdown=slowdown(devices)).step_s
        row = {"sigma": sigma, "collocated_s": collocated}
        print(f"sigma {sigma}: collocated {collocated:.0f} s a step")
        for name, (options, whole) in modes.items():
            step_s, share = best_split(devices, sigma, options, whole=whole)
            row[name] = collocated / step_s
            print(f"  {name:28} {collocated / step_s:.2f}x  ({step_s:.0f} s, {share:.0%} of the devices generate)")
        lost = devices - 8
        smaller = {"rollout": Slot(0, lost), "actor": Slot(0, lost)}
        left = simulate(base, Machine(devices=lost), smaller, Options(steps=STEPS), slowdown=slowdown(lost)).step_s
        print(f"  collocated, a node of 8 lost   {collocated / left:.3f}x")
        rows.append(row)
    began = time.process_time()
    plan = search(workload(1024, 0.0, whole=False), Machine(devices=1024, per_node=8))
    print(f"search of 1,024 devices: {time.process_time() - began:.2f} s of CPU, {plan.simulated} simulated, gap {plan.gap:.1%}")
    RESULTS.write_text(json.dumps({"devices": devices, "steps": STEPS, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

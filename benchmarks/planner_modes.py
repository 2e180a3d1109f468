"""How the execution modes compare on machines that are not here, by simulation: `planner_modes.py`. Minutes of CPU.

A GPU writes `PLACES` responses at a time: one token of each of n takes `STEP_S + SEQUENCE_S · n`, and a free place is filled at
once. The collocated run writes the responses of a step on all GPUs, waits for the longest, and trains on all GPUs. The others
write on some GPUs and train on the rest, with the best of a few splits: without overlap, in chunks, or asynchronously, where the
responses of `max_lag` + 1 steps may be under way. Then a step trains on its own responses, or on as many as end first.

The constants are a model of 8 billion bf16 weights on an H100 (3.35 TB/s, 989 TFLOP/s by its data sheet), with responses of 8,192
tokens on average: reading the weights is 16 GB, the cache of a half written response 131 kB · 4,096; training and rescoring are
8 FLOP per weight and token at 40 % of the peak. Weights and what is read again with them cost nothing.

`LARGE` GPUs, of which one in a hundred takes 1.5 times as long, and one node is lost; then `SMALL` ones, all alike, to see what
decides.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

from rlinf.core.random import keyed_generator
from rlinf.scheduler.planner import Channel, Component, LinearCost, Machine, Options, Simulation, Slot, Workload, simulate
from rlinf.scheduler.planner.simulation.device_timelines import lengths

BANDWIDTH, PEAK = 3.35e12, 989e12
WEIGHTS, CACHE = 8e9, 131_072
MEAN = 8192
STEP_S = 2 * WEIGHTS / BANDWIDTH
SEQUENCE_S = CACHE * MEAN / 2 / BANDWIDTH
TRAIN_S = 8 * WEIGHTS / (0.4 * PEAK)
"""Of one token on one GPU."""
PLACES = 64
SWITCH_S = 10.0
"""Of a collocated step, to load and offload; by hand."""
SIGMAS = (0.0, 0.5, 1.0, 1.3)
STEPS = 12
"""Of which the last half counts: until then asynchronous runs fill."""
LARGE, SMALL = 4096, 16
EACH, CUT = 128, 16.0
"""Responses of a step for each GPU, and where they are cut, in means; of the large machine."""
CASES = ((128, 16.0), (128, 4.0), (64, 16.0), (256, 16.0))
"""The same of the small one."""
MODES: dict[str, tuple[Options, dict[str, Any]]] = {
    "disaggregated": (Options(steps=STEPS), {}),
    "8 chunks": (Options(steps=STEPS, chunks=8), {"whole": False}),
    "lag 1": (Options(steps=STEPS, max_lag=1), {}),
    "lag 4": (Options(steps=STEPS, max_lag=4), {}),
    "lag 1, first": (Options(steps=STEPS, max_lag=1), {"in_order": False}),
    "lag 4, first": (Options(steps=STEPS, max_lag=4), {"in_order": False}),
    "lag 4, in batches": (Options(steps=STEPS, max_lag=4), {"places": 0}),
}
ON_LARGE = ("disaggregated", "8 chunks", "lag 1", "lag 4")
REPORTED = {0.5: (1.1, 1.1), 1.0: (2.0, 2.3), 1.3: (2.8, 2.8)}
"""What real systems report for asynchronous runs, from and to."""
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/planner_modes.json"
PICTURE = ROOT / "docs/pictures/planner_modes.svg"


def workload(
    devices: int,
    each: int,
    cut: float,
    sigma: float,
    *,
    whole: bool = True,
    places: int = PLACES,
    in_order: bool = True,
    sync_s: float = 0.0,
) -> Workload:
    """Writing and training of so many responses for each GPU."""
    rollout = Component(
        items=devices * each,
        costs={1: LinearCost(fixed_s=STEP_S * MEAN, item_s=SEQUENCE_S * MEAN)},
        length_sigma=sigma,
        longest=cut,
        places=places,
        in_order=in_order,
    )
    # Cut responses are shorter on average, for training too.
    mean = float(lengths(rollout, "rollout", 0, 0).mean())
    actor = Component(items=devices * each, costs={1: LinearCost(item_s=TRAIN_S * MEAN * mean)}, lockstep=True)
    channel = Channel(producer="rollout", consumer="actor", whole=whole)
    return Workload(components={"rollout": rollout, "actor": actor}, channels=(channel,), sync_s=sync_s)


def slowdown(devices: int) -> list[float]:
    """One device in a hundred takes 1.5 times as long."""
    slow = keyed_generator(0, "slow devices").random(devices) < 0.01
    return [1.5 if each else 1.0 for each in slow.tolist()]


def steady_s(simulation: Simulation) -> float:
    """Seconds of a step of the last half."""
    half, ends = simulation.steps // 2, simulation.ends_s
    return (ends[-1] - ends[half - 1]) / (simulation.steps - half)


def collocated_s(devices: int, each: int, cut: float, sigma: float, slow: list[float]) -> float:
    """Of a step on all GPUs."""
    base = workload(devices, each, cut, sigma, sync_s=SWITCH_S)
    both = {"rollout": Slot(0, devices), "actor": Slot(0, devices)}
    return steady_s(simulate(base, Machine(devices=devices), both, Options(steps=STEPS), slowdown=slow))


def mode_s(mode: str, devices: int, each: int, cut: float, sigma: float, slow: list[float], splits: int) -> dict[str, float]:
    """Of a step in a mode, with the best of so many splits of the GPUs, and how old its responses are."""
    options, fields = MODES[mode]
    work = workload(devices, each, cut, sigma, **fields)
    writing, training = (STEP_S / PLACES + SEQUENCE_S), TRAIN_S
    fair = devices * writing / (writing + training)
    found: list[tuple[float, float, float, int]] = []
    for more in (0.0, 0.06, -0.06, 0.12, 0.18)[:splits]:
        at = min(devices - 1, max(1, round(fair + more * devices)))
        layout = {"rollout": Slot(0, at), "actor": Slot(at, devices - at)}
        simulation = simulate(work, Machine(devices=devices), layout, options, slowdown=slow)
        found.append((steady_s(simulation), at / devices, *simulation.staleness))
    step_s, share, mean, most = min(found)
    return {"step_s": step_s, "writing": share, "behind": mean, "most": most}


def row(
    devices: int, each: int, cut: float, sigma: float, modes: tuple[str, ...], *, slow: list[float], splits: int
) -> dict[str, Any]:
    """How many times as fast as the collocated run each mode is."""
    began = time.process_time()
    base = collocated_s(devices, each, cut, sigma, slow)
    found: dict[str, Any] = {"devices": devices, "responses": each, "cut": cut, "sigma": sigma, "collocated_s": base}
    for mode in modes:
        taken = mode_s(mode, devices, each, cut, sigma, slow, splits)
        found[mode] = {"gain": base / taken["step_s"], **taken}
    if slow:
        left = devices - 8
        found["a node lost"] = base / collocated_s(left, each * devices // left, cut, sigma, slow[:left])
    gains = ", ".join(f"{mode} {found[mode]['gain']:.2f}x" for mode in modes)
    print(f"{devices} GPUs, {each}, {cut:g}, {sigma}: {base:.0f} s; {gains} ({time.process_time() - began:.0f} s)", flush=True)
    return found


def draw(rows: list[dict[str, Any]]) -> None:
    """The gain by the spread of lengths: of each mode on the large machine, and of lag 4 in each case on the small one."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.2), sharex=True)
    large = [each for each in rows if each["devices"] == LARGE]
    for mode in ON_LARGE:
        label = mode if "lag" not in mode else f"asynchronous, {mode}"
        left.plot([r["sigma"] for r in large], [r[mode]["gain"] for r in large], marker="o", label=label)
    for sigma, (low, high) in REPORTED.items():
        name = "asynchronous, reported" if sigma == 0.5 else None
        left.plot([sigma, sigma], [low, high], color="black", marker="_", markersize=12, linewidth=2, label=name)
    left.set_title(f"{LARGE:,} GPUs, {EACH} responses each, cut at {CUT:g} means")
    for each, cut in CASES:
        own = [r for r in rows if (r["devices"], r["responses"], r["cut"]) == (SMALL, each, cut)]
        gains = [r["lag 4"]["gain"] for r in own]
        right.plot([r["sigma"] for r in own], gains, marker="o", label=f"{each} responses, cut at {cut:g}")
    own = [r for r in rows if (r["devices"], r["responses"], r["cut"]) == (SMALL, EACH, CUT)]
    batches = [r["lag 4, in batches"]["gain"] for r in own]
    right.plot([r["sigma"] for r in own], batches, marker="x", linestyle="--", color="grey", label=f"{EACH}, {CUT:g}, in batches")
    right.set_title(f"{SMALL} GPUs, asynchronous, lag 4")
    for axes in (left, right):
        axes.axhline(1.0, color="lightgrey", zorder=0)
        axes.set_xlabel("spread of lengths (σ of a lognormal)")
        axes.set_ylabel("throughput, collocated = 1")
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    mpl.rcParams["svg.hashsalt"] = "rlinf"
    figure.savefig(PICTURE, metadata={"Date": None})  # pyright: ignore[reportUnknownMemberType]


def main() -> None:
    """Prints the tables, writes them beside this script row by row, and draws them. Rows that are there are not made again."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    known = {(each["devices"], each["responses"], each["cut"], each["sigma"]) for each in rows}
    small = [(SMALL, *case, sigma) for case, sigma in itertools.product(CASES, SIGMAS)]
    for devices, each, cut, sigma in [*small, *((LARGE, EACH, CUT, sigma) for sigma in SIGMAS)]:
        if (devices, each, cut, sigma) in known:
            continue
        large = devices == LARGE
        modes, slow = (ON_LARGE, slowdown(devices)) if large else (tuple(MODES), list[float]())
        rows.append(row(devices, each, cut, sigma, modes, slow=slow, splits=3 if large else 4))
        RESULTS.write_text(json.dumps({"steps": STEPS, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    draw(rows)


if __name__ == "__main__":
    main()

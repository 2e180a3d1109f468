"""Predicted against measured steps of real recipes: `planner_recipes.py [--steps 12] [--recipe cartpole_ppo …] [--traces FOLDER]`.

Each recipe runs, traced, at several placements on two virtual accelerators, on Ray. The planner is fitted to the traces of the
first two (`FITTED`) and predicts them all; the figures that count are those of placements that it has not seen. It wants an idle
machine: the placements are compared with each other, one after the other. Virtual accelerators compute nothing, so that placements
with the same numbers of processes are the same work: how far their measured steps differ is the noise of the measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rlinf.scheduler.planner import Machine, Options, simulate
from rlinf.scheduler.planner.fitting import fitted, observe

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "planner_recipes.json"

# Components in the order env, rollout, actor.
EMBODIED = ("env", "rollout", "actor")
ON_TWO = ("0-1", "0", "0-1:0")
APART = ("0", "1", "0")
HELD_OUT = (("0", "0", "0"), ("0-1", "1", "0"), ("0", "0", "0-1:0"), ("0-1", "0", "1"))
REASONING = ("rollout", "actor")
PLACEMENTS: dict[str, tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "maniskill_ppo_mlp": ("embodied", EMBODIED, (ON_TWO, APART, *HELD_OUT)),
    "cartpole_ppo": ("embodied", EMBODIED, (ON_TWO, APART, *HELD_OUT)),
    "halfcheetah_ppo": ("embodied", EMBODIED, (ON_TWO, APART, *HELD_OUT)),
    "grpo_arithmetic": ("reasoning", REASONING, (("0-1", "0"), ("0", "0"), ("0", "1"), ("0-1", "1"))),
}
"""Recipe → its app, its components, and their devices; the first two placements of each are fitted."""
FITTED = 2


def run(recipe: str, placement: dict[str, str], folder: Path, steps: int) -> Path:
    """Runs and traces one placement; the folder with its trace."""
    kept = list(folder.rglob("trace.json"))
    if kept:
        return kept[0]
    app = PLACEMENTS[recipe][0]
    command = [sys.executable, str(ROOT / "apps" / app / "train.py"), "--config-name", recipe]
    command += ["cluster.tracer.enabled=true", f"runner.max_steps={steps}", "runner.val_check_interval=0"]
    command += [
        f"runner.logger.log_path={folder}",
        *(f'cluster.component_placement.{name}="{at}"' for name, at in placement.items()),
    ]
    command += (
        ["env.eval.final_episodes=8", "env.eval.max_episode_steps=10"]
        if app == "embodied"
        else ["data.final_problems=8", "sft.runner.max_steps=1"]
    )
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if ended.returncode:
        raise SystemExit(f"{recipe} at {placement} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    (trace,) = folder.rglob("trace.json")
    return trace


def measure(recipe: str, folder: Path, steps: int) -> list[dict[str, Any]]:
    """What one recipe takes at each of its placements, and what the planner says."""
    _, components, placements = PLACEMENTS[recipe]
    traces = [
        run(recipe, dict(zip(components, devices, strict=True)), folder / f"{recipe}_{at}", steps)
        for at, devices in enumerate(placements)
    ]
    workload = fitted(traces[:FITTED])[0].workload
    rows: list[dict[str, Any]] = []
    for at, (devices, trace) in enumerate(zip(placements, traces, strict=True)):
        observed = observe(trace)
        step_s = median(observed.step_s)
        predicted = simulate(workload, Machine(devices=2, virtual=True), observed.layout, Options()).step_s
        name = ", ".join(f"{component} {where}" for component, where in zip(components, devices, strict=True))
        low, _, high = quantiles(observed.step_s, n=4)
        row = {"recipe": recipe, "placement": name, "fitted": at < FITTED, "measured_s": step_s, "predicted_s": predicted}
        processes = [observed.layout[component].processes for component in components]
        rows.append({**row, "quartiles_s": [low, high], "steps": len(observed.step_s), "processes": processes})
        print(
            f"{recipe:18} {name:36} measured {step_s:.3f} s, predicted {predicted:.3f} s, {predicted / step_s - 1:+.1%}", flush=True
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of placements that were not fitted, pairs of placements of one recipe in the right order, the price of a choice."""
    errors = [abs(row["predicted_s"] / row["measured_s"] - 1) for row in rows if not row["fitted"]]
    recipes = {row["recipe"]: [each for each in rows if each["recipe"] == row["recipe"]] for row in rows}
    pairs = [pair for each in recipes.values() for pair in itertools.combinations(each, 2)]
    # Told apart by the measurement: the middle halves of their steps do not overlap.
    apart = [(a, b) for a, b in pairs if a["quartiles_s"][1] < b["quartiles_s"][0] or b["quartiles_s"][1] < a["quartiles_s"][0]]
    alike = [(a, b) for a, b in pairs if a["processes"] == b["processes"]]
    differ = [pair for pair in apart if pair not in alike]
    chosen = {
        recipe: min(each, key=lambda row: row["predicted_s"])["measured_s"] / min(row["measured_s"] for row in each)
        for recipe, each in recipes.items()
    }
    return {
        "held_out": len(errors),
        "median_error": median(errors),
        "pairs": len(pairs),
        "pairs_right": _right(pairs),
        "pairs_apart": len(apart),
        "pairs_apart_right": _right(apart),
        "pairs_apart_of_other_work": len(differ),
        "pairs_apart_of_other_work_right": _right(differ),
        "noise": median(abs(a["measured_s"] / b["measured_s"] - 1) for a, b in alike),
        "chosen": chosen,
    }


def _right(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    return sum((a["measured_s"] < b["measured_s"]) == (a["predicted_s"] < b["predicted_s"]) for a, b in pairs)


def main() -> None:
    """Prints the table, and writes it beside this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--recipe", action="append", choices=sorted(PLACEMENTS))
    parser.add_argument("--traces", metavar="FOLDER", help="keeps the traces there; those that are there are not made again")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in asked.recipe or PLACEMENTS:
            rows += measure(recipe, Path(asked.traces or folder).absolute(), asked.steps)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps({"rows": rows, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

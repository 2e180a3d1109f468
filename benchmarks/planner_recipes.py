"""Predicted against measured steps of real recipes: `planner_recipes.py [--rounds 4] [--recipe cartpole_ppo …] [--traces FOLDER]`.

Each recipe runs, traced, at several placements on two virtual accelerators, on Ray. The planner is fitted to the traces of the
first two (`FITTED`) and predicts them all; the figures that count are those of placements that it has not seen. Virtual
accelerators compute nothing, so that placements with the same numbers of processes are the same work: how far their measured steps
differ is the noise of the measurement.

It wants an idle machine, and its speed drifts all the same. So the placements take turns, A B C, C B A, A B C, and a step counts
relative to the level of its round, the geometric mean over the placements. `--minutes` ends a portion; the next one with the same
`--traces` goes on with it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from typing import Any

from rlinf.core.process import own_cores
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
ENDED = "ended"
"""A file in the folder of a run that was not cut off."""


def run(recipe: str, placement: dict[str, str], folder: Path, steps: int) -> Path:
    """Runs and traces one placement, unless its trace is there; the folder with its trace."""
    if (folder / ENDED).exists():
        return _trace(folder)
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
    (folder / ENDED).touch()
    return _trace(folder)


def _trace(folder: Path) -> Path:
    return max(folder.rglob("trace.json"), key=lambda path: path.stat().st_mtime)


def folder_of(folder: Path, recipe: str, at: int, turn: int) -> Path:
    """Where the trace of a placement in a round is."""
    return folder / f"{recipe}_{at}_{turn}"


def play(recipes: Sequence[str], folder: Path, *, rounds: int, steps: int, until: float) -> bool:
    """Runs all placements of some recipes in turns; whether that ended before the time did."""
    for turn in range(rounds):
        for recipe in recipes:
            _, components, placements = PLACEMENTS[recipe]
            numbers = range(len(placements))
            for at in reversed(numbers) if turn % 2 else numbers:
                if time.monotonic() > until:
                    return False
                placement = dict(zip(components, placements[at], strict=True))
                run(recipe, placement, folder_of(folder, recipe, at, turn), steps)
    return True


def turns(steps: Sequence[Sequence[Sequence[float]]]) -> tuple[list[list[float]], list[list[float]]]:
    """Steps without the drift between rounds.

    Args:
        steps: `[rounds][placements]`, the seconds of the steps of each run.

    Returns:
        `[placements]`, the median step of each round, and all steps;
        both without the level of their round.
    """
    levels = [geometric_mean([median(run) for run in turn]) for turn in steps]
    level = geometric_mean(levels)
    scaled = [[[each * level / here for each in run] for run in turn] for turn, here in zip(steps, levels, strict=True)]
    placements = range(len(steps[0]))
    medians = [[median(turn[at]) for turn in scaled] for at in placements]
    return medians, [[each for turn in scaled for each in turn[at]] for at in placements]


def measure(recipe: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """What one recipe takes at each of its placements, and what the planner says."""
    _, components, placements = PLACEMENTS[recipe]
    traces = [[_trace(folder_of(folder, recipe, at, turn)) for at in range(len(placements))] for turn in range(rounds)]
    observed = [[observe(trace) for trace in turn] for turn in traces]
    medians, every = turns([[each.step_s for each in turn] for turn in observed])
    workload = fitted([trace for turn in traces for trace in turn[:FITTED]])[0].workload
    rows: list[dict[str, Any]] = []
    for at, devices in enumerate(placements):
        layout = observed[0][at].layout
        step_s = median(medians[at])
        predicted = simulate(workload, Machine(devices=2, virtual=True, cores=own_cores()), layout, Options()).step_s
        name = ", ".join(f"{component} {where}" for component, where in zip(components, devices, strict=True))
        low, _, high = quantiles(every[at], n=4)
        row = {"recipe": recipe, "placement": name, "fitted": at < FITTED, "measured_s": step_s, "predicted_s": predicted}
        processes = [layout[component].processes for component in components]
        rows.append({**row, "quartiles_s": [low, high], "rounds_s": medians[at], "steps": len(every[at]), "processes": processes})
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
    other = [pair for pair in pairs if pair not in alike]
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
        "pairs_of_other_work": len(other),
        "pairs_of_other_work_right": _right(other),
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
    parser.add_argument("--steps", type=int, default=12, help="of each run")
    parser.add_argument("--rounds", type=int, default=4, help="how often each placement runs")
    parser.add_argument("--recipe", action="append", choices=sorted(PLACEMENTS))
    parser.add_argument("--traces", metavar="FOLDER", help="keeps the traces there; those that are there are not made again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begins no run after that many; needs --traces")
    asked = parser.parse_args()
    recipes = asked.recipe or list(PLACEMENTS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.traces or temporary).absolute()
        until = time.monotonic() + 60 * asked.minutes
        if not play(recipes, folder, rounds=asked.rounds, steps=asked.steps, until=until):
            print(f"{asked.minutes} minutes are over: the same command goes on")
            return
        for recipe in recipes:
            rows += measure(recipe, folder, asked.rounds)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps({"rows": rows, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

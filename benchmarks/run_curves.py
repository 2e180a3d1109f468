"""Draws the curves of the README, and keeps those of recipes that learn from a replay buffer or a dataset.

    uv run --group bench benchmarks/run_curves.py embodied RUN… --out docs/pictures/pushcube_curve.png
    uv run --group bench benchmarks/run_curves.py off_policy [RUN…] [LABEL=RUN…]

Each RUN is the folder of a run, such as `logs/maniskill_ppo_mlp`; `reasoning` draws those of `apps/reasoning`. `off_policy` adds
runs to `benchmarks/results/off_policy_runs.json`, in place of an older one of that recipe, label and seed, draws all that are there
in `docs/pictures/off_policy_curves.png`, a panel for each recipe, and prints them. A LABEL says what a run changed that is not the
recipe itself, such as `algorithm.utd=0`: its curve is dashed. Without a RUN it draws what is there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks/results/off_policy_runs.json"
PICTURE = ROOT / "docs/pictures/off_policy_curves.png"
COLUMNS = 4
COLOURS = ("#2458c5", "#d24a3a", "#3a9a5b", "#8a5cc2", "#c98a1b", "#4a4a4a")


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn of a run."""

    title: str
    progress: str
    """The scalar along the picture."""
    progress_name: str
    training: str
    evaluation: str
    bound: float
    """Where the line of the goal is."""


CURVES = {
    "embodied": Curve("PushCube-v1", "env/steps", "environment steps", "env/success_once", "eval/success_once", 0.95),
    "reasoning": Curve("Sums of six terms", "step", "iterations of GRPO", "rollout/accuracy", "eval/accuracy", 0.85),
}


def main() -> None:
    """Reads the runs and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve", choices=[*sorted(CURVES), "off_policy"])
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--out", type=Path, help=f"the picture (of off_policy: {PICTURE.name})")
    given = parser.parse_args()
    if given.curve == "off_policy":
        off_policy(given.runs, given.out or PICTURE)
    elif given.runs and given.out is not None:
        of_readme(CURVES[given.curve], [Path(run) for run in given.runs], given.out)
    else:
        parser.error(f"{given.curve}: expected at least one RUN, and --out")


def of_readme(curve: Curve, runs: list[Path], out: Path) -> None:
    """One picture, a colour for each run."""
    plot: Any = pyplot
    figure, axes = plot.subplots(figsize=(7, 3.2), dpi=110)
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        seed = json.loads((run / "summary.json").read_text())["seed"]
        training, evaluated = points(rows, curve, curve.training), points(rows, curve, curve.evaluation)
        axes.plot([s for s, _ in training], smooth([v for _, v in training]), color=colour, alpha=0.35, linewidth=1)
        axes.plot(*zip(*evaluated, strict=True), "o-", color=colour, linewidth=1.8, markersize=4, label=f"seed {seed}")
    axes.axhline(curve.bound, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(xlabel=curve.progress_name, ylabel=curve.evaluation.removeprefix("eval/"), ylim=(0, 1.02), xlim=(0, None))
    axes.set_title(f"{curve.title}: evaluation (points) and training (thin, mean of 10 iterations)", fontsize=9, loc="left")
    axes.xaxis.set_major_formatter(thousands)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out)


def off_policy(runs: list[str], out: Path) -> None:
    """Keeps runs, and draws and prints all that are kept."""
    kept = {_key(run): run for run in json.loads(KEPT.read_text(encoding="utf-8"))} if KEPT.is_file() else {}
    for name in runs:
        label, _, folder = name.rpartition("=")
        run = measured(Path(folder), label)
        kept[_key(run)] = run
    rows = [kept[key] for key in sorted(kept)]
    # A line for each run: what a new one changes is seen at once.
    KEPT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    draw_all(rows, out)
    for group in grouped(rows).values():
        finals = ", ".join(f"{row['final']:.1%}" if row["metric"] == "success_once" else f"{row['final']:.0f}" for row in group)
        seeds, first = ", ".join(str(row["seed"]) for row in group), group[0]
        label = f" {first['label']}" if first["label"] else ""
        print(f"{first['recipe']}{label}: {first['env_steps']:,} steps; seeds {seeds}: {finals} ({first['episodes']} episodes)")


def measured(folder: Path, label: str) -> dict[str, Any]:
    """What a run reached, and on the way; its last evaluation has episodes of its own, see `protocol`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    metric = summary["metric"] if summary["metric"] != "success_once" or summary["success"]["n"] else "return"
    name = f"eval/{metric}"
    return {
        "recipe": summary["experiment"],
        "label": label,
        "seed": summary["seed"],
        "metric": metric,
        "final": summary[name],
        "episodes": summary["eval/episodes"],
        "protocol": summary["protocol"]["hash"],
        "env_steps": int(summary["env/steps"]),
        "versions": {part: summary["versions"][part] for part in ("python", "torch", "numpy")},
        # Iteration, environment steps, and the mean over the episodes of that evaluation.
        "curve": list(
            {row["step"]: [row["step"], int(row["env/steps"]), round(row[name], 4)] for row in rows if name in row}.values()
        ),
    }


def draw_all(rows: list[dict[str, Any]], out: Path) -> None:
    """A panel for each recipe, a line for each run: iterations below where nothing was played."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    plot: Any = pyplot
    size = (ceil(len(recipes) / COLUMNS), min(COLUMNS, len(recipes)))
    figure, panels = plot.subplots(*size, figsize=(2.9 * size[1], 2.0 * size[0]), dpi=90, squeeze=False)
    for axes in panels.flat[len(recipes) :]:
        axes.set_visible(False)
    for axes, recipe in zip(panels.flat, recipes, strict=False):
        own = [row for row in rows if row["recipe"] == recipe]
        column = 1 if any(row["env_steps"] for row in own) else 0
        for row in own:
            colour: str = "#8a8a8a" if row["label"] else COLOURS[(int(row["seed"]) - 1) % len(COLOURS)]
            points = [(point[column], point[2]) for point in row["curve"]]
            axes.plot(
                *zip(*points, strict=True), "--" if row["label"] else "-", color=colour, linewidth=1.2, marker=".", markersize=4
            )
        axes.set_title(recipe, fontsize=8, loc="left")
        axes.set_xlabel("environment steps" if column else "iterations", fontsize=7)
        axes.set_ylabel(own[0]["metric"], fontsize=7)
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_formatter(thousands)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out)


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Runs that differ in their seed alone."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["recipe"], row["label"]), []).append(row)
    return found


def _key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["recipe"], run["label"], run["seed"]


def points(rows: list[dict[str, float]], curve: Curve, name: str) -> list[tuple[float, float]]:
    """Where a scalar was written, and what it was."""
    return [(row[curve.progress], row[name]) for row in rows if name in row]


def thousands(value: float, position: int) -> str:
    """The text of a tick."""
    return f"{value / 1000:.0f} k" if value >= 1000 else f"{value:.0f}"


def smooth(values: list[float], window: int = 10) -> list[float]:
    """The mean of the last `window` values at each place."""
    return [sum(values[max(0, i - window + 1) : i + 1]) / len(values[max(0, i - window + 1) : i + 1]) for i in range(len(values))]


if __name__ == "__main__":
    main()

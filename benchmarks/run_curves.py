"""Draws the curves of the README: `uv run --group bench benchmarks/run_curves.py embodied RUN… --out FILE`.

Each RUN is the folder of a run, such as `logs/maniskill_ppo_mlp`; `reasoning` draws those of `apps/reasoning`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curve", choices=sorted(CURVES))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    curve = CURVES[given.curve]
    plot: Any = pyplot
    figure, axes = plot.subplots(figsize=(7, 3.2), dpi=110)
    for run, colour in zip(given.runs, cycle(COLOURS), strict=False):
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
    figure.savefig(given.out)


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

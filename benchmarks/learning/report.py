"""What a run leaves behind: a table, a small JSON file and a figure."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from learning.loop import Point, Run

COLOURS = ("#2458c5", "#d24a3a", "#3a9a5b", "#8a5cc2", "#b8860b")
GREY = "#8a8a8a"


def table(results: Mapping[str, Sequence[Run]]) -> str:
    """One line for each run: where it began, its best, where it ended."""
    lines = [f"{'variant':24s} {'seed':>4s} {'before':>7s} {'best':>7s} {'end':>7s} {'env steps':>10s} {'seconds':>8s}"]
    for name, runs in results.items():
        for run in runs:
            success = [point.success for point in run.points]
            label = f"{name} (control)" if run.control else name
            numbers = f"{success[0]:7.3f} {max(success):7.3f} {success[-1]:7.3f} {run.points[-1].env_steps:10d} {run.seconds:8.1f}"
            lines.append(f"{label:24s} {run.seed:4d} {numbers}")
    return "\n".join(lines)


def write_json(path: Path, results: Mapping[str, Sequence[Run]], *, command: str) -> None:
    """Curves, the command that made them, and versions."""
    runs = {name: [_plain(run) for run in found] for name, found in results.items()}
    versions = {name: version(name) for name in ("torch", "numpy", "transformers")}
    document = {"command": command, "python": platform.python_version(), "versions": versions, "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, list[Run]]:
    """What `write_json` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {name: [_run(row) for row in rows] for name, rows in document["runs"].items()}


def draw(path: Path, results: Mapping[str, Sequence[Run]], *, title: str) -> None:
    """A panel for each variant: a thin line for each seed, their mean, and the control."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    plot: Any = pyplot
    figure, panels = plot.subplots(1, len(results), figsize=(1.2 + 3.4 * len(results), 3.0), dpi=100, sharey=True, squeeze=False)
    for axes, (name, runs), colour in zip(panels[0], results.items(), COLOURS, strict=False):
        learning, controls = [run for run in runs if not run.control], [run for run in runs if run.control]
        for run in learning:
            axes.plot(*_curve(run), color=colour, alpha=0.35, linewidth=1)
        for i, run in enumerate(controls):
            label = "shuffled advantages" if i == 0 else None
            axes.plot(*_curve(run), color=GREY, linewidth=1.2, linestyle="--", label=label)
        if learning:
            curves = [_curve(run)[1] for run in learning]
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            axes.plot(_curve(learning[0])[0], mean, color=colour, linewidth=2.2, label=f"mean of {len(learning)} seeds")
        axes.set(xlabel="iterations", ylim=(0, 1.02))
        axes.set_title(name, fontsize=9, loc="left")
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    panels[0][0].set_ylabel("success, unseen episodes")
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plot.close(figure)


def say(line: str) -> None:
    """Prints at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(row: Mapping[str, Any]) -> Run:
    columns = zip(row["iteration"], row["env_steps"], row["success"], strict=True)
    points = tuple(Point(iteration=i, env_steps=n, success=s) for i, n, s in columns)
    return Run(seed=row["seed"], control=row["control"], points=points, seconds=row["seconds"])


def _curve(run: Run) -> tuple[list[int], list[float]]:
    return [point.iteration for point in run.points], [point.success for point in run.points]


def _plain(run: Run) -> dict[str, Any]:
    plain = asdict(run)
    points = plain.pop("points")
    return plain | {key: [round(point[key], 4) for point in points] for key in ("iteration", "env_steps", "success")}

"""The command line that all learning benchmarks share."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from learning.loop import Run, learn
from learning.recipe import Recipe
from learning.report import draw, read_json, say, table, write_json

ROOT = Path(__file__).resolve().parents[2]


def main(name: str, title: str, variants: Mapping[str, Recipe]) -> None:
    """Runs every variant with every seed, and once with shuffled advantages.

    Args:
        name: of the script; results go to `benchmarks/results/<name>.json` and `docs/pictures/<name>.png`.
        title: of the figure.
        variants: recipes by what the figure calls them.
    """
    given = _arguments(title, list(variants))
    command = f"uv run --group bench benchmarks/{name}.py {shlex.join(sys.argv[1:])}".strip()
    if given.join:
        results = joined(given.join, list(variants))
        command = f"uv run --group bench benchmarks/{name}.py"
    else:
        results = _runs(given, variants, command)
    say(table(results))
    if given.out is None and given.weights is None and not given.short:
        write_json(ROOT / "benchmarks" / "results" / f"{name}.json", results, command=command)
        draw(ROOT / "docs" / "pictures" / f"{name}.png", results, title=title)


def joined(files: Sequence[Path], order: Sequence[str]) -> dict[str, list[Run]]:
    """The runs of several files, as if one command had made them: by variant, then seed, the controls last."""
    found: dict[str, list[Run]] = {label: [] for label in order}
    for file in files:
        for label, runs in read_json(file).items():
            found[label] += runs
    return {label: sorted(runs, key=lambda run: (run.control, run.seed)) for label, runs in found.items() if runs}


def _runs(given: argparse.Namespace, variants: Mapping[str, Recipe], command: str) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {}
    for label in given.variants:
        recipe = variants[label]
        iterations = (
            given.iterations if given.iterations is not None else (recipe.short_iterations if given.short else recipe.iterations)
        )
        runs = results[label] = []
        for seed, control in [(seed, False) for seed in given.seeds] + [(given.seeds[0], True)] * (not given.no_control):
            length = min(iterations, recipe.control_iterations or iterations) if control else iterations
            say(f"{label}: {length} iterations{' with shuffled advantages' * control}")
            first = label == given.variants[0] and not runs
            weights = given.weights if first else None
            runs.append(learn(replace(recipe, iterations=length), seed, control=control, report=say, weights=weights))
            if given.out is not None:
                write_json(given.out, results, command=command)
    return results


def _arguments(title: str, labels: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=None)
    parser.add_argument("--variants", nargs="+", choices=labels, default=labels)
    parser.add_argument("--short", action="store_true", help="few iterations; nothing is written unless --out is given")
    parser.add_argument("--no-control", action="store_true", help="without the runs with shuffled advantages")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON file goes; then no figure is drawn")
    parser.add_argument("--weights", type=Path, default=None, help="a folder for what imitation taught the first run: a ckpt_path")
    parser.add_argument("--join", type=Path, nargs="+", default=[], help="runs nothing; joins files that --out wrote")
    return parser.parse_args()

"""`summary.json`: what a run achieved, with everything that the number depends on."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlinf.core.evaluation import EvalReport
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunnerConfig

VERSIONED = (
    *(f"rlinf-{part}" for part in ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")),
    *("torch", "ray", "numpy", "gymnasium", "mani-skill", "gymnasium-robotics", "mujoco", "transformers", "vllm", "sglang"),
    *("metaworld", "hf-libero", "robosuite", "envpool", "genesis-world"),
)


@functools.cache
def versions() -> Mapping[str, str]:
    """The versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_report(folder: RunFolder, runner: RunnerConfig, report: EvalReport[Any], measured: Mapping[str, Any]) -> None:
    """Writes the report of an evaluation as the summary of a run, which `EvalReport.load` reads.

    Args:
        folder: where the summary goes.
        runner: names the run and its seed.
        report: the last evaluation.
        measured: what else is known, such as `env/steps`.
    """
    scalars: dict[str, Any] = report.scalars()
    if report.total is not None:
        scalars[f"eval/{report.metric}_ci95"] = [round(report.total.low, 4), round(report.total.high, 4)]
    report.write(folder.summary, _described(folder, runner, {**scalars, **measured}))


def write_measured(folder: RunFolder, runner: RunnerConfig, measured: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
    """Writes numbers that are no success rates, with what they depend on.

    Args:
        folder: where the summary goes.
        runner: names the run and its seed.
        measured: the numbers.
        protocol: what they depend on beside the weights, with its `hash`.
    """
    summary = {**_described(folder, runner, measured), "protocol": dict(protocol)}
    folder.summary.write_text(json.dumps(summary, indent=1, default=str) + "\n")


def _described(folder: RunFolder, runner: RunnerConfig, measured: Mapping[str, Any]) -> dict[str, Any]:
    named = {"experiment": runner.experiment_name, "seed": runner.seed, **measured}
    return {**named, "time/wall_s": folder.wall_s, "versions": versions()}

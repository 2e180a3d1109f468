"""`summary.json`: what a run achieved, with everything that the number depends on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlinf.core.evaluation import wilson_interval
from rlinf.runners.config.schema import RunnerConfig
from rlinf.runners.embodied.evaluation import evaluation_protocol
from rlinf.runners.embodied.schema import EmbodiedConfig

VERSIONED = (
    *(f"rlinf-{part}" for part in ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")),
    *("torch", "ray", "numpy", "gymnasium", "mani-skill", "gymnasium-robotics", "mujoco", "transformers", "vllm", "sglang"),
)


def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_summary(path: Path, cfg: EmbodiedConfig, scalars: Mapping[str, float], episodes: int) -> dict[str, Any]:
    """Writes the summary of a run or of an evaluation, and returns it.

    Args:
        path: the file.
        cfg: the configuration of the run.
        scalars: `eval/…`, `env/steps`, `time/wall_s`.
        episodes: how many episodes the evaluation ran.
    """
    measured: dict[str, Any] = {**scalars}
    if "eval/success_once" in scalars:
        low, high = wilson_interval(round(scalars["eval/success_once"] * episodes), episodes)
        measured["eval/success_once_ci95"] = [round(low, 4), round(high, 4)]
    return write_measured(path, cfg.runner, measured, evaluation_protocol(cfg, episodes))


def rate(summary: Mapping[str, Any], metric: str) -> str:
    """A metric of a summary with its interval; as a plain number where it has none."""
    interval = summary.get(f"{metric}_ci95")
    if interval is None:
        return f"{metric} {summary[metric]:.2f}"
    low, high = interval
    return f"{metric} {summary[metric]:.1%} [{low:.1%}, {high:.1%}]"


def write_measured(path: Path, runner: RunnerConfig, measured: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Writes what was measured with what it depends on, and returns it.

    Args:
        path: the file.
        runner: names the run and its seed.
        measured: the numbers.
        protocol: what they depend on beside the weights, with its `hash`.
    """
    summary: dict[str, Any] = {
        "experiment": runner.experiment_name,
        **measured,
        "seed": runner.seed,
        "protocol": dict(protocol),
        "versions": versions(),
    }
    path.write_text(json.dumps(summary, indent=1, default=str) + "\n")
    return summary

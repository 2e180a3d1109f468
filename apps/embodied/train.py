"""Trains a policy on a simulated robot: `uv run apps/embodied/train.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.embodied.task_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import run_app, train_app

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""
    return train_app(argv, config_dir=CONFIG_DIR, default="maniskill_ppo_mlp", description=__doc__ or "")


if __name__ == "__main__":
    run_app(main)

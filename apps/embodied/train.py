"""Trains a policy on a simulated robot: `uv run apps/embodied/train.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.embodied.task_type`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlinf.runners import run_app, train_app

main = partial(train_app, config_dir=Path(__file__).parent / "config", default="maniskill_ppo_mlp", description=__doc__ or "")
"""Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""

if __name__ == "__main__":
    run_app(main)

"""Teaches a language model to use tools over many turns: `uv run apps/agent/train.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.agent.task_type`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlinf.runners import run_app, train_app

main = partial(train_app, config_dir=Path(__file__).parent / "config", default="calculator_grpo", description=__doc__ or "")
"""Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""

if __name__ == "__main__":
    run_app(main)

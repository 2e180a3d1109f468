"""Teaches a language model to use tools over many turns: `uv run apps/agent/train.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.agent.task_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import run_app, train_app

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""
    return train_app(argv, config_dir=CONFIG_DIR, default="calculator_grpo", description=__doc__ or "")


if __name__ == "__main__":
    run_app(main)

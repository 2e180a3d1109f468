"""Teaches a language model from worked solutions: `uv run apps/reasoning/sft.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.sft.task_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import run_app, train_app

CONFIG_DIR = Path(__file__).parent / "config_sft"


def main(argv: Sequence[str]) -> int:
    """Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""
    return train_app(argv, config_dir=CONFIG_DIR, default="sft_arithmetic", description=__doc__ or "")


if __name__ == "__main__":
    run_app(main)

"""Teaches a language model from worked solutions: `uv run apps/reasoning/sft.py [--config-name RECIPE] [key=value …]`.

Its workers and where each of them goes: `rlinf.runners.sft.task_type`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlinf.runners import run_app, train_app

main = partial(train_app, config_dir=Path(__file__).parent / "config_sft", default="sft_arithmetic", description=__doc__ or "")
"""Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""

if __name__ == "__main__":
    run_app(main)

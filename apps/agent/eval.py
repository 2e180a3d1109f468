"""Evaluates an agent: `uv run apps/agent/eval.py [CHECKPOINT … | --config-name RECIPE] [key=value …]`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlinf.runners import eval_app, run_app

main = partial(eval_app, config_dir=Path(__file__).parent / "config", description=__doc__ or "")
"""Evaluates a checkpoint with the configuration inside it, or what a recipe of this folder starts from."""

if __name__ == "__main__":
    run_app(main)

"""Evaluates an agent: `uv run apps/agent/eval.py [CHECKPOINT | --config-name RECIPE] [key=value …]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import eval_app, run_app

CONFIG_DIR = Path(__file__).parent / "config"


def main(argv: Sequence[str]) -> int:
    """Evaluates a checkpoint with the configuration inside it, or what a recipe of this folder starts from."""
    return eval_app(argv, config_dir=CONFIG_DIR, description=__doc__ or "")


if __name__ == "__main__":
    run_app(main)

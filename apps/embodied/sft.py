"""Teaches a policy what was demonstrated: `uv run apps/embodied/sft.py [--config-name RECIPE] [key=value …]`.

`apps/embodied/collect.py` records demonstrations; `runner.ckpt_path=<the folder of this run>` starts reinforcement learning from
the result. Its workers and where each of them goes: `rlinf.runners.embodied_sft.task_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlinf.runners import run_app, train_app

CONFIG_DIR = Path(__file__).parent / "config_sft"


def main(argv: Sequence[str]) -> int:
    """Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""
    return train_app(argv, config_dir=CONFIG_DIR, default="tabletop_openvla_oft_sft", description=__doc__ or "")


if __name__ == "__main__":
    run_app(main)

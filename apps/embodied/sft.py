"""Teaches a policy what was demonstrated: `uv run apps/embodied/sft.py [--config-name RECIPE] [key=value …]`.

`apps/embodied/collect.py` records demonstrations; `runner.ckpt_path=<the folder of this run>` starts reinforcement learning from
the result. Its workers and where each of them goes: `rlinf.runners.embodied_sft.task_type`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rlinf.runners import run_app, train_app

main = partial(
    train_app, config_dir=Path(__file__).parent / "config_sft", default="tabletop_openvla_oft_sft", description=__doc__ or ""
)
"""Runs a recipe of this folder; its `runner.task_type`, or else its sections, says what kind of run it is."""

if __name__ == "__main__":
    run_app(main)

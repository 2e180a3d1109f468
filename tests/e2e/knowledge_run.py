"""A small generated knowledge base, and as short a run on it as there can be: one update after a warm start."""

from __future__ import annotations

SIZES = {"people": 300, "companies": 40, "cities": 30, "countries": 20}
SMALL = tuple(f"data.knowledge.{name}={size}" for name, size in SIZES.items())


def quick(groups: int, rows: int) -> tuple[str, ...]:
    """Overrides of a run whose iterations have so many groups, and optimizer steps so many rows."""
    return (
        *SMALL,
        "data.worked_share=1.0",
        "data.train=400",
        "data.validation=64",
        f"data.rollout_batch_size={groups}",
        f"data.val_problems={groups}",
        f"data.final_problems={groups}",
        f"actor.global_batch_size={rows}",
        "runner.max_steps=1",
        "runner.val_check_interval=0",
        f"runner.transcripts={groups}",
        "sft.runner={max_steps: 1, steps_per_iteration: 60}",
        "sft.before.runner={max_steps: 1, steps_per_iteration: 20, until_loss: null}",
        "sft.before.before.runner={max_steps: 1, steps_per_iteration: 20, until_loss: null}",
        "actor.model.overrides.num_hidden_layers=2",
        "sft.actor.global_batch_size=16",
    )

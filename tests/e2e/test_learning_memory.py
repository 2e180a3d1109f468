"""A policy with a memory learns what one without can't: to say at the end what it saw at the start."""

from __future__ import annotations

import json
from typing import Any

import pytest

RECALL = (
    "--config-name",
    "tabletop_cma_ppo",
    "runner.max_steps=30",
    "runner.val_check_interval=0",
    "runner.logger.logger_backends=[]",
    "cluster.backend=local",
    'cluster.component_placement.actor="0"',
    "env.train.env_type=toy_recall:Recall",
    "env.train.total_num_envs=64",
    "env.train.max_steps_per_rollout_epoch=5",
    "env.eval.episodes=64",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=80",
)
"""Five decisions of episodes of three: rows begin in the middle of episodes, and end there."""


def success(app: Any, *more: str) -> float:
    code, said = app.train_here(*RECALL, *more)
    assert code == 0, said
    return json.loads((app.logs / "tabletop_cma_ppo/summary.json").read_text())["eval/success_once"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_remembers_through_rollout_training_and_evaluation(app: Any, seed: int) -> None:
    assert success(app, f"runner.seed={seed}") >= 0.95


@pytest.mark.slow
def test_without_a_memory_it_guesses(app: Any) -> None:
    assert (
        success(
            app,
            "actor.model={model_type: cnn_policy, preset: tiny, image_features: 64, hidden_sizes: [32]}",
            "actor.model.num_action_chunks=1",
        )
        <= 0.7
    )

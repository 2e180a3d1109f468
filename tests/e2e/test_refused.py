"""What is refused when simulators are up leaves no folder behind."""

from __future__ import annotations

from typing import Any


def test_a_chunk_that_is_longer_than_the_episodes_of_a_simulator(app: Any) -> None:
    model = "actor.model={model_type: mlp_policy, num_action_chunks: 31}"
    code, said = app.train_here("--config-name", "tabletop_cnn_ppo", "cluster.backend=local", model)
    assert code == 2
    assert "'mlp_policy' decides for 31 control steps at once, and env.train.env_type 'tabletop' ends an episode after 30" in said
    assert not list(app.logs.glob("tabletop*"))

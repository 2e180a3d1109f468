"""Short runs of apps/embodied on one real GPU, which actor and rollout share as processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.scheduler.trace import spans

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),  # no Ray is started for what skips itself
    pytest.mark.usefixtures("shared_ray"),
]
VLA = (
    "env.train.init_params.reward_mode=progress",
    "env.train.max_steps_per_rollout_epoch=2",
    "env.train.total_num_envs=8",
    "actor.global_batch_size=8",
)
OFF_POLICY = (
    "env.train.max_steps_per_rollout_epoch=16",
    "algorithm.start_steps=32",
    "algorithm.replay_buffer.min_buffer_size=32",
    "actor.global_batch_size=32",
)
RECIPES = {
    "cartpole_ppo": (),
    "maniskill_ppo_mlp": (),
    **{f"tabletop_{name}": VLA for name in ("cnn_ppo", "cma_ppo", "flow_ppo", "flow_fpo", "flow_nft", "gr00t_ppo")},
    **{f"tabletop_{name}": VLA for name in ("openvla_ppo", "openvla_oft_ppo", "pi0_ppo", "pi05_ppo")},
    "tabletop_sac_flow": (*OFF_POLICY, "algorithm.demo_buffer=null"),
    "pendulum_sac": OFF_POLICY,
    "pendulum_td3": OFF_POLICY,
    "cartpole_dqn": OFF_POLICY,
    "halfcheetah_crossq": OFF_POLICY,
}
SHORT = (
    "runner.max_steps=2",
    "runner.val_check_interval=0",
    "runner.logger.logger_backends=[]",
    "cluster.backend=ray",
    "cluster.virtual_accelerators=null",
    "cluster.component_placement={actor: '0', rollout: '0', env: '0'}",
    "env.eval.total_num_envs=2",
    "env.eval.episodes=2",
    "env.eval.final_episodes=2",
    "env.eval.video_cfg.save_video=false",
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_there(app: Any, tmp_path: Path, recipe: str) -> None:
    if recipe.startswith("maniskill"):
        pytest.importorskip("mani_skill")
    trace = tmp_path / "trace.json"
    traced = f"cluster.tracer={{enabled: true, path: '{trace}'}}"
    done = app.train("--config-name", recipe, *SHORT, traced, *RECIPES[recipe])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NVIDIA GPU" in done.stdout + done.stderr
    assert app.grad_norm(recipe) > 0
    # Weights are sent from where they are trained.
    assert "cuda_ipc" in {span.route for span in spans(trace) if span.kind == "send" and span.group == "actor"}

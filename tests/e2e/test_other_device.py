"""Short off-policy runs whose tensors are on another device than the CPU, where there is no GPU; most of them `nox -s slow`."""

from __future__ import annotations

from typing import Any

import pytest
from test_gpu_embodied import OFF_POLICY, RECIPES, SHORT

pytestmark = pytest.mark.timeout(600)
FEW = (
    "cluster.backend=local",
    "env.train.total_num_envs=2",  # as many updates as decisions
    "env.train.max_steps_per_rollout_epoch=8",
    "actor.global_batch_size=16",
    "runner.max_steps=3",
)
MORE = {"pendulum_redq": OFF_POLICY, **{recipe: changed for recipe, changed in RECIPES.items() if set(OFF_POLICY) <= set(changed)}}
QUICK = "pendulum_td3"


@pytest.mark.parametrize("recipe", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in MORE])
def test_a_recipe_trains_there(app: Any, recipe: str) -> None:
    start = ("algorithm.start_steps=16", "algorithm.replay_buffer.min_buffer_size=16")
    done = app.train_on_other_device("--config-name", recipe, *SHORT, *MORE[recipe], *FEW, *start)
    assert done.returncode == 0, done.stdout + done.stderr
    assert app.grad_norm(recipe) > 0

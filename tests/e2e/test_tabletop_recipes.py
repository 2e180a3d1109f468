"""The ladder of policies on the tabletop simulator: one short iteration of each recipe, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_numbers import numbers_of
from safetensors.torch import load_file
from sft_run import demonstrate

from rlinf.core.random import keyed_seed
from rlinf.runners import read_embodied
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.sections import resolved

CONFIG = Path(__file__).parents[2] / "apps/embodied/config"
RECIPES = sorted(path.stem for path in CONFIG.glob("tabletop_*.yaml") if "embodied_off_policy" not in path.read_text("utf-8"))
VLAS = [f"tabletop_{model}_ppo" for model in ("openvla_oft", "openvla", "pi0", "pi05", "gr00t")]
SHORT = (
    "runner.max_steps=1",
    "runner.val_check_interval=0",
    "runner.logger.logger_backends=[]",
    "cluster.backend=local",
    'cluster.component_placement.actor="0"',
    'cluster.component_placement.env="0"',
    "env.train.init_params.reward_mode=progress",
    "env.train.total_num_envs=8",
    "env.train.max_steps_per_rollout_epoch=2",
    "env.eval.total_num_envs=4",
    "env.eval.episodes=4",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=8",
    "algorithm.update_epoch=1",
)
"""Two optimizer steps on 16 decisions, all of which are rewarded for something."""


def metrics_of(app: Any, recipe: str, *more: str) -> dict[str, float]:
    """The metrics of one short iteration of a recipe."""
    code, said = app.train_here("--config-name", recipe, *SHORT, *more)
    assert code == 0, said
    return {key: value for line in app.metrics(recipe) for key, value in line.items()}


@pytest.fixture(scope="module")
def as_they_are() -> dict[str, dict[str, float]]:
    """The metrics of recipes without a change, as far as they have been run."""
    return {}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_and_is_evaluated(app: Any, recipe: str, as_they_are: dict[str, dict[str, float]]) -> None:
    demonstrations: list[str] = []
    if recipe.endswith("_co_train"):
        demonstrate(app.logs / "push", task="push", episodes=2, num_envs=2)
        demonstrations = [f"algorithm.co_training.path={app.logs / 'push'}"]
    metrics = as_they_are[recipe] = metrics_of(app, recipe, *demonstrations)
    assert metrics["train/skipped"] == 0
    assert metrics["train/grad_norm"] > 0
    assert 0 <= metrics["eval/success_once"] <= 1


@pytest.mark.parametrize("recipe", ["tabletop_flow_fpo", "tabletop_flow_nft"])
def test_a_flow_that_resumes_learns_as_one_without_a_break(app: Any, recipe: str) -> None:
    """Times and noises of each decision, and what the optimizer and its schedule know, go on to the bit."""
    longer = ("--config-name", recipe, *SHORT, "runner.max_steps=4", "runner.save_interval=2", "runner.keep_checkpoints=null")
    again = app.logs / "again"
    code, said = app.train_here(*longer)
    assert code == 0, said
    whole = app.logs / recipe / "checkpoints"
    resumed = (f"runner.logger.log_path={again}", f"runner.resume_dir={whole / 'global_step_2'}")
    code, said = app.train_here(*longer, *resumed)
    assert code == 0, said
    begun, expected, found = (
        numbers_of(folder)
        for folder in (whole / "global_step_2", whole / "global_step_4", again / recipe / "checkpoints/global_step_4")
    )
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert any(not np.array_equal(begun[name], array) for name, array in found.items() if name.startswith("model.safetensors/"))


def started(recipe: str, *more: str) -> tuple[dict[str, Any], set[str]]:
    """The weights with which a run begins, and the names of those that it trains."""
    cfg = read_embodied(compose_recipe(CONFIG, recipe, (*SHORT, *more)).data)
    envs = cfg.env.train.init_params
    spec = envs.describe(envs.make(1, max_episode_steps=None, ignore_terminations=False, render=False))
    policy = cfg.actor.model.build(spec, seed=keyed_seed(cfg.runner.seed, "model"))
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}, trained


def weights(app: Any, recipe: str) -> dict[str, Any]:
    """Those of the last checkpoint of a recipe."""
    return load_file(app.logs / recipe / "checkpoints/global_step_1/actor/model.safetensors")


@pytest.mark.parametrize("recipe", VLAS)
def test_lora_by_one_key_trains_adapters_and_heads_alone(app: Any, recipe: str) -> None:
    lora = "actor.model.lora={rank: 2, modules_to_train: [value_head, critic]}"
    before, trained = started(recipe, lora)
    assert metrics_of(app, recipe, lora)["train/grad_norm"] > 0
    after = weights(app, recipe)
    changed = {name for name in after if not torch.equal(after[name], before[name].float())}
    assert {name for name in changed if "lora_B" in name}, "adapters learn"
    assert changed <= trained, "what is frozen stays as it was"


@pytest.mark.parametrize("recipe", VLAS)
def test_gradient_checkpointing_by_one_key_changes_no_number(
    app: Any, recipe: str, as_they_are: dict[str, dict[str, float]]
) -> None:
    plain = as_they_are.get(recipe) or metrics_of(app, recipe)
    recomputed = metrics_of(app, recipe, "actor.fsdp_config.gradient_checkpointing=true")
    for name in ("train/loss", "train/grad_norm"):
        assert recomputed[name] == pytest.approx(plain[name], rel=1e-4)


def test_a_run_starts_from_the_weights_of_another(app: Any) -> None:
    recipe, still = "tabletop_openvla_oft_ppo", ("actor.optim.lr=1.0e-12", "actor.optim.value_lr=1.0e-12")
    metrics_of(app, recipe)
    first = weights(app, recipe)
    folder = app.logs / recipe
    folder.rename(app.logs / "first")
    metrics_of(app, recipe, f"runner.ckpt_path={app.logs / 'first'}", *still)
    second = weights(app, recipe)
    assert all(torch.allclose(first[name], second[name], atol=1e-8) for name in first)
    before, trained = started(recipe)
    assert any(not torch.equal(first[name], before[name].float()) for name in trained)


@pytest.mark.parametrize("recipe", ["tabletop_openvla_oft_ppo", "maniskill_ppo_openvla_oft"])
def test_another_simulator_by_one_key(recipe: str) -> None:
    """The parameters of the one that is replaced go with it; for the format of its actions see `test_refused_actions.py`."""
    cfg = read_embodied(compose_recipe(CONFIG, recipe, ["env.train.env_type=libero"]).data)
    env = resolved(cfg)["env"]
    assert env["train"]["init_params"]["suite"] == env["eval"]["init_params"]["suite"] == "libero_spatial"
    assert env["train"]["init_params"].keys().isdisjoint({"task", "goals", "task_id", "sim_backend"})


def test_replayed_sequences_have_the_log_probabilities_of_the_rollout(app: Any) -> None:
    """Rows of three decisions, some of which begin in the middle of an episode; the gate compares each decision."""
    metrics = metrics_of(
        app,
        "tabletop_cma_ppo",
        "env.train.max_steps_per_rollout_epoch=3",
        "env.train.rollout_epoch=3",
        "actor.global_batch_size=24",
    )
    assert metrics["train/logprob_gap/beyond"] == 0
    assert metrics["train/logprob_gap/abs"] < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", ["tabletop_cnn_ppo", "tabletop_cma_ppo"])
def test_a_network_that_sees_learns_to_reach_from_pictures(app: Any, recipe: str) -> None:
    one_process = ("cluster.backend=local", 'cluster.component_placement.actor="0"', "runner.logger.logger_backends=[]")
    code, said = app.train_here("--config-name", recipe, *one_process, "env.eval.video_cfg.save_video=false")
    assert code == 0, said
    assert json.loads((app.logs / f"{recipe}/summary.json").read_text())["eval/success_once"] >= 0.9

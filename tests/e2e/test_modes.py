"""Where things run changes nothing: collocated, disaggregated, hybrid and local runs give the same losses."""

from __future__ import annotations

from typing import Any

import pytest

MODES = ("maniskill_ppo_mlp_local", "maniskill_ppo_mlp", "maniskill_ppo_mlp_hybrid", "maniskill_ppo_mlp_disaggregated")
SHORT = ("runner.max_steps=2", "runner.seed=11", "env.eval.final_episodes=16", "env.eval.video_cfg.save_video=false")
COMPARED = ("train/loss", "train/policy_loss", "train/value_loss", "train/approx_kl", "env/return")


def expect_same(one: list[dict[str, float]], other: list[dict[str, float]], told: str) -> None:
    assert len({row["train/loss"] for row in one}) == 2, "the losses must change from step to step"
    for expected, found in zip(one, other, strict=True):
        for name in COMPARED:
            assert found[name] == pytest.approx(expected[name], abs=1e-5), f"{told}, step {expected['step']}: {name}"


@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_processes_on_shared_devices_give_the_losses_of_one_process(app: Any, tiny: list[str]) -> None:
    runs: list[list[dict[str, float]]] = []
    for backend in ("local", "ray"):
        code, said = app.train_here(*tiny, "runner.val_check_interval=0", f"cluster.backend={backend}")
        assert code == 0, said
        runs.append(app.metrics("tiny")[:2])
    expect_same(*runs, "on Ray")


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("shared_ray")
def test_the_default_recipe_trains_on_ray(app: Any) -> None:
    """The command of the README, with its simulator in processes of its own."""
    steps = ("env.train.max_episode_steps=5", "env.train.max_steps_per_rollout_epoch=5", "env.eval.max_episode_steps=5")
    few = ("env.train.total_num_envs=2", "actor.global_batch_size=10", "env.eval.total_num_envs=2", "env.eval.final_episodes=2")
    once = ("runner.max_steps=1", "runner.val_check_interval=0", "env.eval.video_cfg.save_video=false")
    code, said = app.train_here(*steps, *few, *once, 'cluster.component_placement.env="0"')
    assert code == 0, said
    (row,) = (row for row in app.metrics("maniskill_ppo_mlp") if "train/loss" in row)
    assert row["train/grad_norm"] > 0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_all_modes_give_the_same_losses(app: Any) -> None:
    runs: dict[str, list[dict[str, float]]] = {}
    for recipe in MODES:
        code, said = app.train_here("--config-name", recipe, *SHORT)
        assert code == 0, said
        runs[recipe] = app.metrics(recipe)[:2]
    first, *others = MODES
    for recipe in others:
        expect_same(runs[first], runs[recipe], recipe)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compiled_policy_decides_as_before(app: Any) -> None:
    """In training and evaluation, which have other numbers of rows, and after new weights; what is compiled rounds otherwise."""
    rows: list[list[dict[str, float]]] = []
    for compiled in ("false", "true"):
        short = ("cluster.backend=local", "runner.max_steps=2", "env.eval.final_episodes=64", "env.eval.video_cfg.save_video=false")
        code, said = app.train_here("--config-name", "tabletop_pi0_ppo", *short, f"rollout.enable_torch_compile={compiled}")
        assert code == 0, said
        rows.append(app.metrics("tabletop_pi0_ppo"))
    for plain, one in zip(*rows, strict=True):
        for name in plain.keys() & {*COMPARED, "env/success_once", "eval/success_once"}:
            assert one[name] == pytest.approx(plain[name], abs=1e-5), name
    gap = "train/logprob_gap/max_bound"
    assert 0 < rows[1][0][gap] != rows[0][0][gap], "nothing was compiled"


def test_another_seed_gives_other_losses(app: Any, tiny: list[str]) -> None:
    losses = []
    for seed in (1, 2):
        assert app.train_here(*tiny, "cluster.backend=local", f"runner.seed={seed}")[0] == 0
        losses.append(app.metrics("tiny")[0]["train/loss"])
    assert losses[0] != losses[1]


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_two_actor_ranks_train_as_one(app: Any, tiny: list[str], backend: str, request: pytest.FixtureRequest) -> None:
    """Data-parallel training sees the same decisions, over messages or gloo; only their order within an epoch differs."""
    if backend == "ray":
        request.getfixturevalue("shared_ray")
    whole_batch = ["actor.global_batch_size=80", "algorithm.update_epoch=1", "runner.max_steps=2"]
    rows = []
    for where, placement in (("local", '"0"'), (backend, '"0-1"')):
        placed = (f"cluster.backend={where}", f"cluster.component_placement.actor={placement}")
        code, said = app.train_here(*tiny, *whole_batch, *placed)
        assert code == 0, said
        rows.append(app.metrics("tiny")[:2])
    for one, two in zip(*rows, strict=True):
        for name in ("train/loss", "train/value_loss", "train/grad_norm", "env/return"):
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), name

"""Off-policy recipes are run: shrunken in one process, resumed to the bit, and, slowly, until they have learned."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from checkpoint_numbers import numbers_of

from rlinf.core.checkpoints.weight_files import newest_checkpoint

SHORT = (
    *("runner.max_steps=6", "runner.val_check_interval=0", "runner.save_minutes=0", "runner.keep_best=false"),
    *("env.eval.total_num_envs=2", "env.eval.final_episodes=2", "env.eval.max_episode_steps=20"),
    *("actor.global_batch_size=16", "algorithm.start_steps=64", "algorithm.replay_buffer.n_step=3"),
)
EVERY = ("env.train.total_num_envs=4", "env.train.max_steps_per_rollout_epoch=8", "algorithm.utd=0.5")
SOFT = {"train/critic_loss", "train/actor_loss", "train/alpha_loss"}
LOSSES = {
    "pendulum_sac": SOFT,
    "pendulum_td3": {"train/critic_loss", "train/actor_loss"},
    "cartpole_dqn": {"train/critic_loss"},
    "pendulum_droq": SOFT,
    "pendulum_redq": SOFT,
    "halfcheetah_crossq": SOFT,
    "tabletop_rlpd": SOFT,
    "tabletop_sac_flow": {"train/critic_loss", "train/actor_loss"},
    "tabletop_dsrl_pi0": SOFT,
    "tabletop_rlt_pi0": {"train/critic_loss", "train/actor_loss", "train/bc_loss"},
}
CHOSEN = (
    *("actor.model.base.ckpt_path=null", "actor.model.num_q_heads=2", "actor.model.image_size=16"),
    *("algorithm.start_steps=0", "algorithm.replay_buffer.min_buffer_size=64"),
)
"""A steered policy with random weights: what it chose is what the first decisions are, too."""
REFINED = (
    *("actor.model.base.ckpt_path=null", "algorithm.start_steps=0", "algorithm.replay_buffer.min_buffer_size=64"),
    *("algorithm.critic_actor_ratio=1", "env.train.bootstrap_truncated=true"),
)
"""A policy that changes what one with random weights proposes, in every update; it is asked about final observations, too."""
OF_FROZEN = {"tabletop_dsrl_pi0": CHOSEN, "tabletop_rlt_pi0": REFINED}
LEARNED = {
    "cartpole_dqn": (200.0, 450.0),
    "pendulum_sac": (-900.0, -200.0),
    "pendulum_td3": (-900.0, -200.0),
    "tabletop_rlpd": (0.3, 0.8),
    "halfcheetah_crossq": (100.0, 1500.0),
    "pushcube_sac": (10.0, 18.0),
}
"""The most that no learning reaches, and the least mean of three seeds."""

RESUMED = ("pendulum_droq", "cartpole_dqn", "tabletop_rlpd")
"""One with dropout, one with numbered actions, one with demonstrations."""
SHOWN = ("tabletop_rlpd", "tabletop_sac_flow")
"""Recipes that learn beside demonstrations of a scripted expert."""


def demonstrated(app: Any, recipe: str, *options: str) -> tuple[str, ...]:
    """Records what a recipe wants to be shown, if it wants that, and says where it is."""
    if recipe not in SHOWN:
        return ()
    folder = app.logs / "demonstrations"
    if not folder.is_dir():
        code, said = app.here("collect.py", "--config-name", recipe, "--out", str(folder), *options)
        assert code == 0, said
    return (f"algorithm.demo_buffer.path={folder}",)


def expect_updates(app: Any, recipe: str, shown: tuple[str, ...]) -> None:
    """4 environments of 8 decisions: 32 transitions an iteration; the first update after 64."""
    rows = [row for row in app.metrics(recipe) if "train/replay_buffer/size" in row]
    assert [row["train/replay_buffer/size"] for row in rows] == [32, 64, 96, 128, 160, 192]
    assert ["train/critic_loss" in row for row in rows] == [False, True, True, True, True, True]
    for row in rows[1:]:
        assert all(math.isfinite(row[name]) for name in LOSSES[recipe])
        assert row["train/critic_grad_norm"] > 0
        assert row["train/skipped"] == 0
        assert ("train/demo_buffer/size" in row) == bool(shown)


@pytest.mark.parametrize("recipe", [recipe for recipe in LOSSES if recipe not in RESUMED])
def test_a_recipe_runs(app: Any, recipe: str) -> None:
    shown = demonstrated(app, recipe, "--episodes=3")
    further = OF_FROZEN.get(recipe, shown)
    assert app.run(recipe, *SHORT, *EVERY, *further)["protocol"]["episodes"] == 2
    expect_updates(app, recipe, shown)


@pytest.mark.parametrize("recipe", [*RESUMED, pytest.param("tabletop_rlt_pi0", marks=pytest.mark.slow)])
def test_a_run_that_resumes_is_one_without_a_break(app: Any, recipe: str) -> None:
    """Dropout and demonstrations are drawn anew as they were."""
    shown = demonstrated(app, recipe, "--episodes=3")
    further = OF_FROZEN.get(recipe, shown)
    # Where an episode goes on, it is played again.
    goes_on = str(recipe == "pendulum_droq").lower()
    exact = (*SHORT, *EVERY, *further, f"env.train.auto_reset={goes_on}", "runner.save_interval=3")
    assert app.run(recipe, *exact)["protocol"]["episodes"] == 2
    expect_updates(app, recipe, shown)
    whole = app.logs / recipe / "checkpoints"
    rows = app.metrics(recipe)
    again = f"runner.logger.log_path={app.logs / 'again'}"
    run_again, said = app.train_here("--config-name", recipe, *exact, again, f"runner.resume_dir={whole / 'global_step_3'}")
    assert run_again == 0, said
    expected, found = numbers_of(whole / "global_step_6"), numbers_of(app.logs / "again" / recipe / "checkpoints/global_step_6")
    assert expected.keys() == found.keys()
    assert any(name.startswith("replay_0/") for name in found)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    lines = (app.logs / "again" / recipe / "metrics.jsonl").read_text().splitlines()
    resumed = [row for row in map(json.loads, lines) if "train/critic_loss" in row]
    assert [row["step"] for row in resumed] == [4, 5, 6]
    for row, before in zip(resumed, [row for row in rows if "train/critic_loss" in row][-3:], strict=True):
        told = {name for name in row if name.startswith(("train/", "env/"))}
        assert {name: row[name] for name in told} == {name: before[name] for name in told}


@pytest.mark.slow
@pytest.mark.parametrize("raise_at", sorted(random.Random(16).sample(range(9, 48), 3)))
def test_a_producer_that_dies_costs_what_was_not_saved_and_no_more(app: Any, raise_at: int) -> None:
    """Wherever it dies: after the run goes on, the replay buffer has what it has without, so none is lost and none there twice."""
    exact = (*SHORT, *EVERY, "env.train.auto_reset=false", "runner.save_interval=1", "env.train.env_type=faulty:Faulty")
    app.run("pendulum_sac", *exact)
    expected = numbers_of(app.logs / "pendulum_sac/checkpoints/global_step_6")
    folder = app.logs / "broken"
    broken = ("--config-name", "pendulum_sac", *exact, f"runner.logger.log_path={folder}")
    code, said = app.train_here(*broken, f"env.train.init_params.raise_at={raise_at}")
    assert code == 1, said
    assert "env[0] failed in interact(): ValueError: the gripper fell off" in said
    saved = newest_checkpoint(folder / "pendulum_sac")
    assert saved is not None
    assert saved.name == f"global_step_{raise_at // 8}", "whole iterations were saved, of eight steps each"
    assert f"The run can go on from its last checkpoint: runner.resume_dir={saved}\n" in said
    code, said = app.train_here(*broken, f"runner.resume_dir={saved}")
    assert code == 0, said
    found = numbers_of(folder / "pendulum_sac/checkpoints/global_step_6")
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    rows = [json.loads(line) for line in (folder / "pendulum_sac/metrics.jsonl").read_text().splitlines()]
    sizes = {row["step"]: row["train/replay_buffer/size"] for row in rows if "train/replay_buffer/size" in row}
    assert sizes == {step: 32 * step for step in range(1, 7)}


def test_a_producer_that_dies_before_the_first_checkpoint_says_so(app: Any) -> None:
    faulty = ("env.train.env_type=faulty:Faulty", "env.train.init_params.raise_at=3", "runner.save_interval=1")
    code, said = app.train_here("--config-name", "pendulum_sac", *SHORT, *faulty)
    assert code == 1, said
    assert "There is no checkpoint to go on from: runner.save_interval and" in said
    assert newest_checkpoint(app.logs / "pendulum_sac") is None


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("pendulum_sac", "algorithm.loss_type=ppo_clip", "algorithm.loss_type: no off-policy objective named 'ppo_clip'"),
        ("cartpole_ppo", "algorithm.loss_type=sac", "no policy loss named 'sac'. 'sac' learns from a replay buffer: set runner"),
        ("pendulum_sac", "actor.model.q_head=crossq", "actor.model.q_head: 'sac' learns from target networks, and these critics"),
        ("halfcheetah_crossq", "actor.model.q_head=multi", "actor.model.q_head: 'crossq' learns without target networks, which"),
        (
            "halfcheetah_crossq",
            "actor.micro_batch_size=64",
            "actor.micro_batch_size: 64 of 256 transitions, and critics",
        ),
        ("pendulum_sac", "actor.model.normalize_observations=true", "actor.model.normalize_observations: statistics of"),
        (
            "pendulum_sac",
            "actor.model.num_q_heads=0",
            "actor.model.num_q_heads: 'sac' learns Q-functions, and 'mlp_policy' has none",
        ),
        ("pendulum_sac", "algorithm.loss_type=dqn", "algorithm.loss_type: 'dqn' chooses one numbered action"),
        ("pendulum_sac", "algorithm.replay_buffer.capacity=1000000000000", "algorithm.replay_buffer.capacity: 1,000,000,000,000"),
        ("pendulum_sac", "algorithm.replay_buffer.max_gib=0.000001", "algorithm.replay_buffer.max_gib: 1e-06 GiB hold"),
        ("pendulum_sac", "algorithm.replay_buffer.capacity=100", "algorithm.replay_buffer.capacity: 100 transitions are fewer"),
        ("pendulum_sac", "runner.max_steps=2", "runner.max_steps: the run collects 64 transitions, and the first update needs"),
        ("pendulum_sac", "actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config: off-policy training keeps whole weights"),
    ],
)
def test_what_can_not_be_learned_is_refused(app: Any, recipe: str, override: str, said: str) -> None:
    code, told = app.train_here("--config-name", recipe, override)
    assert code == 2, told
    assert said in " ".join(told.split())


def test_demonstrations_of_another_task_are_refused(app: Any) -> None:
    """Before a policy is built, by what describes both."""
    (shown,) = demonstrated(app, "tabletop_rlpd", "--episodes=3")
    code, told = app.train_here("--config-name", "tabletop_rlpd", shown, "env.train.init_params.task=push")
    assert code == 2, told
    said = " ".join(told.split())
    assert f"'states' of '{app.logs / 'demonstrations'}' has the shape [6], that of env.train.env_type 'tabletop' [10]" in said
    code, told = app.train_here("--config-name", "tabletop_rlpd", "algorithm.demo_buffer.path=nowhere")
    assert code == 2, told
    assert "algorithm.demo_buffer.path: expected a LeRobot dataset at 'nowhere', found no such folder" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recipe", LEARNED)
def test_a_recipe_learns(app: Any, recipe: str) -> None:
    """Against a control: the same run without a single update."""
    untrained, trained = LEARNED[recipe]
    shown = demonstrated(app, recipe, "--episodes=30", "--speed=0.5", "--noise=0.3", "--only-success")
    found: list[float] = []
    for seed in (1, 2, 3):
        found.append(app.run(recipe, f"runner.seed={seed}", *shown)["eval/return"])
        given = (f"runner.seed={seed}", *shown, "algorithm.utd=0", f"runner.logger.log_path={app.logs / f'control_{seed}'}")
        code, said = app.train_here("--config-name", recipe, *given)
        assert code == 0, said
        control = json.loads((app.logs / f"control_{seed}" / recipe / "summary.json").read_text())
        assert control["eval/return"] <= untrained
    assert sum(found) / len(found) >= trained, found

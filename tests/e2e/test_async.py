"""Runs that play ahead while the actor trains (`rollout.max_lag`): the bound, what repeats, what resumes, and what is counted."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_numbers import numbers_of

from rlinf.core.cluster import futures
from rlinf.core.errors import RLinfError
from rlinf.runners.checkpoints.run_folder import open_run_folder
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.embodied.collection import Collection
from rlinf.runners.embodied.runner import EmbodiedRunner
from rlinf.runners.off_policy.actor_worker import OffPolicyActor
from rlinf.runners.task_types import task_type_of
from rlinf.scheduler import Cluster

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "apps/embodied/config"
QUIET = (
    *("cluster.backend=local", "runner.val_check_interval=0", "runner.save_minutes=0", "runner.keep_best=false"),
    *(
        "runner.max_steps=6",
        "env.eval.total_num_envs=2",
        "env.eval.episodes=2",
        "env.eval.final_episodes=2",
        "env.eval.max_episode_steps=5",
    ),
)
SHORT = ("env.train.max_steps_per_rollout_epoch=5", "env.train.auto_reset=false", "actor.global_batch_size=10")
PPO = (HERE / "config", "tiny", SHORT)
SAC = (RECIPES, "pendulum_sac", ("env.train.auto_reset=false", "actor.global_batch_size=8", "algorithm.start_steps=32"))
BOTH = pytest.mark.parametrize("recipe", [PPO, SAC], ids=["ppo", "sac"])
DECOUPLED = ("algorithm.loss_type=decoupled_actor_critic", "algorithm.recompute_logprobs=true")


@contextmanager
def running(folder: Path, recipe: tuple[Path, str, tuple[str, ...]], *overrides: str) -> Generator[Any]:
    """The runner of a recipe, ready to run."""
    where, name, own = recipe
    data = compose_recipe(where, name, [*QUIET, *own, f"runner.logger.log_path={folder}", *overrides]).data
    task_type = task_type_of(data)
    cfg = task_type.read(data)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        runner: Any = task_type.start(cfg, cluster, open_run_folder(cfg))
        runner.init_workers()
        yield runner


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(two[name], array, err_msg=name)


def ran(app: Any, runner: EmbodiedRunner) -> dict[str, Any]:
    """What the last checkpoint of a whole run holds."""
    runner.run()
    return numbers_of(runner.folder.checkpoints / f"global_step_{runner.step}")


@BOTH
def test_a_lag_of_0_is_the_synchronous_loop_to_the_bit(app: Any, recipe: Any) -> None:
    with running(app.logs / "loop", recipe, "rollout.max_lag=0") as runner:
        expected = ran(app, runner)
    with running(app.logs / "by_hand", recipe) as runner:
        actor, rollout, env, channels, wait = runner.actor, runner.rollout, runner.env, runner.channels, runner.phases.wait
        for step in range(6):
            wait(rollout.sync_model_from_actor(), actor.sync_model_to_rollout())
            wait(
                env.interact(step, channels.requests, channels.answers, channels.trajectories),
                rollout.generate(step, channels.requests, channels.answers),
                actor.recv_rollout_batch(channels.trajectories, env.world_size),
            )
            if recipe is PPO:
                wait(actor.compute_advantages_and_returns())
            wait(actor.run_training(step))
            wait(env.prepare(step + 1))
        folder = app.logs / "found"
        folder.mkdir()
        wait(actor.save_checkpoint(str(folder)))
    assert_same(expected, numbers_of(folder))


def slowly(learn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A learner that takes so long that all that may be played ahead is played before it begins."""

    def learned(runner: EmbodiedRunner) -> Any:
        runner.collection.drain()
        return learn(runner)

    return learned


@BOTH
@pytest.mark.parametrize("max_lag", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_is_trained_on_is_never_older_than_the_bound(app: Any, recipe: Any, max_lag: int) -> None:
    with running(app.logs, recipe, f"rollout.max_lag={max_lag}") as runner:
        runner._learn = slowly(runner._learn)
        runner.run()
    rows = [row for row in app.metrics(recipe[1]) if "rollout/lag" in row]
    assert [row["rollout/lag_max"] for row in rows] == [min(step, max_lag) for step in range(6)]
    assert all(row["rollout/lag_p50"] == row["rollout/lag"] == row["rollout/lag_max"] for row in rows), "all were made before"
    assert all(row[f"rollout/lag_{row['rollout/lag_max']:.0f}"] == 1 for row in rows)


def test_an_iteration_that_begins_too_early_is_an_error(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what arrives does not rely on the admission."""
    begin = Collection.run_ahead

    def early(self: Any, step: int) -> None:
        begin(self, step)
        begin(self, min(step + 1, 4))

    monkeypatch.setattr(Collection, "run_ahead", early)
    with running(app.logs, PPO, "rollout.max_lag=1") as runner:
        runner._learn = slowly(runner._learn)
        with pytest.raises(RLinfError, match=r"at most 1 weight updates old \(rollout\.max_lag\), found 2"):
            runner.run()


@BOTH
def test_a_run_repeats_to_the_bit_however_often_the_driver_looks(app: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = []
    for number, seconds in enumerate((futures.SLICE_S, 0.0)):
        monkeypatch.setattr(futures, "SLICE_S", seconds)
        with running(app.logs / str(number), recipe, "rollout.max_lag=2") as runner:
            found.append(ran(app, runner))
    assert_same(*found)
    shares = [
        value for row in metrics(app.logs / "0" / recipe[1]) for name, value in row.items() if re.fullmatch(r"rollout/lag_\d", name)
    ]
    assert any(0 < share < 1 for share in shares), (
        "weights were taken within an iteration, and each decision says by which it was made"
    )


@BOTH
def test_a_run_that_resumes_is_one_without_a_break(app: Any, recipe: Any) -> None:
    exact = ("rollout.max_lag=2", "runner.save_interval=3", *(DECOUPLED if recipe is PPO else ()))
    with running(app.logs / "whole", recipe, *exact) as runner:
        runner._learn = slowly(runner._learn)
        whole = ran(app, runner)
        third = runner.folder.checkpoints / "global_step_3"
    assert (third / "actor/played_ahead_0.safetensors").exists()
    with running(app.logs / "resumed", recipe, *exact, f"runner.resume_dir={third}") as runner:
        runner._learn = slowly(runner._learn)
        assert_same(whole, ran(app, runner))
        assert runner.env_steps == 6 * runner.cfg.decisions_per_iteration
    rows = [[row for row in metrics(app.logs / run / recipe[1]) if "rollout/lag_max" in row] for run in ("whole", "resumed")]
    lags = [[row["rollout/lag_max"] for row in part] for part in rows]
    assert lags[1] == lags[0][3:], "the bound goes on as if there had been no break"
    assert max(lags[1]) == 2
    if recipe is PPO:
        behind = [row["train/current_version"] - row["train/average_version"] for row in rows[0]]
        # 4 update epochs of 2 optimizer steps; at the first step the weights are those of the last iteration, at the last 7 newer.
        assert behind == [pytest.approx(8 * min(step, 2) + 3.5) for step in range(6)]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


PARTED = (
    *("cluster.virtual_accelerators.count=2", "cluster.component_placement.env=0-1", "cluster.component_placement.rollout=0-1"),
    *("rollout.pipeline_stage_num=2", "env.train.rollout_epoch=2"),
)


@BOTH
def test_no_decision_is_lost_and_none_comes_twice(app: Any, recipe: Any) -> None:
    """Two env workers, two stages, two rollout workers, two rollout epochs: one may be an iteration ahead of the other."""
    with running(app.logs, recipe, "rollout.max_lag=2", *PARTED) as runner:
        sent: Counter[int] = Counter()
        finish = runner.collection.finish

        def counted(step: int, received: Any) -> Any:
            played = finish(step, received)
            sent.update(count for part in played for count in part.decisions.values())
            assert sum(sum(part.decisions.values()) for part in played) == runner.cfg.decisions_per_iteration
            assert received.wait() == [runner.cfg.decisions_per_iteration]
            return played

        runner.collection.finish = counted
        runner.run()
        assert runner.env_steps == 6 * runner.cfg.decisions_per_iteration
    if recipe is SAC:
        rows = [row for row in app.metrics(recipe[1]) if "train/replay_buffer/size" in row]
        assert [row["train/replay_buffer/size"] for row in rows] == [64.0 * (1 + n) for n in range(6)]


@pytest.mark.parametrize("times", [0, 2])
def test_a_part_that_is_lost_or_comes_twice_is_an_error(app: Any, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    actor: Any = OffPolicyActor
    add = actor._add

    def several(self: Any, rows: Any) -> int:
        return sum(add(self, rows) for _ in range(times))

    monkeypatch.setattr(actor, "_add", several)
    said = f"env workers sent 32 decisions of iteration 0, and the actor received {32 * times}"
    with running(app.logs, SAC, "rollout.max_lag=1") as runner, pytest.raises(RLinfError, match=said):
        runner.run()


FAULTY = ("runner.max_steps=100000", "rollout.max_lag=1", "env.train.env_type=faulty:Faulty")


def test_an_env_worker_that_fails_ahead_ends_the_run_with_its_name(app: Any, tiny: list[str]) -> None:
    code, errors = app.train_here(*tiny, *FAULTY, "cluster.backend=local", "env.train.init_params.raise_at=130")
    assert code == 1, errors
    assert re.search(r"env\[\d\] failed in interact\(\): ValueError: the gripper fell off", errors)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize("victim", ["env", "actor"])
def test_a_killed_worker_ends_the_run_with_its_name(app: Any, tiny: list[str], processes: Any, tmp_path: Path, victim: str) -> None:
    pid_file = tmp_path / "pid"
    told = {
        "env": f"env.train.init_params.pid_file={pid_file} env.max_restarts=0",
        "actor": f"algorithm.loss_type=faulty:Located algorithm.pid_file={pid_file}",
    }[victim]
    before = processes.descendants(os.getpid())
    below: set[int] = set()

    def kill() -> None:
        below.update(pid for pid in processes.descendants(os.getpid()) - before if processes.works(pid))
        os.kill(int(pid_file.read_text()), signal.SIGKILL)

    with processes.once(lambda: len(app.metrics("tiny")) >= 3, kill):
        code, errors = app.train_here(*tiny, *FAULTY, *told.split(" "))
    assert code == 1, errors
    assert re.search(rf"WorkerError: {victim}\[\d\] failed (in \w+\(\)|between calls): .*(died|killed)", errors), errors
    assert len(re.findall(r"^WorkerError", errors, re.M)) == 1, "one first cause"
    processes.wait_until(lambda: not processes.alive(below), 60, "no orphans")
    assert [row["env/steps"] for row in app.metrics("tiny")] == [80.0 * (1 + n) for n in range(len(app.metrics("tiny")))]


@pytest.mark.parametrize(
    ("recipe", "overrides", "told"),
    [
        (
            "pushcube_async_ppo",
            ("env.train.total_num_envs=4", "env.train.max_steps_per_rollout_epoch=5", "env.train.max_episode_steps=5"),
            ("train/behave_ratio", "train/average_version", "train/value_loss"),
        ),
        ("pendulum_sac_async", ("algorithm.start_steps=32",), ("train/critic_loss", "train/replay_buffer/size")),
    ],
)
def test_a_recipe_runs(app: Any, recipe: str, overrides: tuple[str, ...], told: tuple[str, ...]) -> None:
    short = ("actor.global_batch_size=10", "runner.max_steps=3", "env.eval.video_cfg.save_video=false")
    code, said = app.train_here("--config-name", recipe, *QUIET, *overrides, *short)
    assert code == 0, said
    rows = [row for row in app.metrics(recipe) if "rollout/lag" in row]
    assert len(rows) == 3
    assert rows[-1]["rollout/lag"] > 0, "environments have played on"
    for row in rows:
        assert row["rollout/lag_max"] <= 1
        assert all(np.isfinite(row[name]) for name in told)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_with_old_decisions_learns(app: Any) -> None:
    """The same bound as the synchronous recipe; see test_learning.py."""
    behind = ("cluster.backend=local", "rollout.max_lag=1", *DECOUPLED, "algorithm.behave_weight_threshold=5.0")
    short = ("runner.val_check_interval=0", "env.eval.final_episodes=32", "env.eval.video_cfg.save_video=false")
    code, said = app.train_here("--config-name", "cartpole_ppo", *behind, *short)
    assert code == 0, said
    assert json.loads((app.logs / "cartpole_ppo/summary.json").read_text())["eval/return"] >= 475

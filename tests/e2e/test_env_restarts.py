"""Processes of an off-policy run die at random: an env worker is replaced, a learner's run is resumed, and transitions are counted.

In one process nobody can die. There an error in a step stands for a death, and the group says that it has started the worker again.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_numbers import numbers_of

from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.playing.env_slot import EnvSlot
from rlinf.scheduler import WorkerGroup

QUIET = (
    *("--config-name=pendulum_sac", "runner.val_check_interval=0", "runner.save_minutes=0", "runner.keep_best=false"),
    *("env.eval.total_num_envs=2", "env.eval.final_episodes=2", "env.eval.max_episode_steps=5"),
    *("env.train.rollout_epoch=2", "actor.global_batch_size=16", "algorithm.start_steps=64", "algorithm.utd=0.25"),
)
"""4 environments of 2 × 8 decisions: 64 transitions in an iteration."""
TWO = "cluster.component_placement={actor: '0', rollout: '0', env: '0:0-1'}"
STEPS = 4


def sizes(rows: list[dict[str, Any]]) -> list[float]:
    return [row["train/replay_buffer/size"] for row in rows if "train/replay_buffer/size" in row]


class Deaths:
    """Lets steps of one env worker's slots fail and every call after them until it is built anew, and its group count restarts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, at: list[int]) -> None:
        self.rank, self.at, self.count, self.steps, self.dead = rank, list(at), 0, 0, False
        original, build, interact = EnvSlot.step, EnvWorker.init_worker, EnvWorker.interact

        def step(slot: EnvSlot, *args: Any) -> Any:
            if slot.slot.env_rank == self.rank:
                self.steps += 1
                if self.at and self.steps == self.at[0]:
                    self.at.pop(0)
                    self.count, self.dead = self.count + 1, True
                    raise RuntimeError("it died")
            return original(slot, *args)

        def built(worker: EnvWorker, *args: Any) -> Any:
            self.dead = self.dead and worker.rank != self.rank
            return build(worker, *args)

        def played(worker: EnvWorker, *args: Any, **kwargs: Any) -> Any:
            if self.dead and worker.rank == self.rank:
                raise RuntimeError("it is dead")
            return interact(worker, *args, **kwargs)

        def restarts(group: Any) -> tuple[int, ...]:
            ranks = range(group.world_size)
            return tuple(self.count if group.name == "env" and rank == self.rank else 0 for rank in ranks)

        monkeypatch.setattr(EnvSlot, "step", step)
        monkeypatch.setattr(EnvWorker, "init_worker", built)
        monkeypatch.setattr(EnvWorker, "interact", played)
        monkeypatch.setattr(WorkerGroup, "restarts", property(restarts))


def ran(app: Any, name: str, *overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the last checkpoint of a whole run holds, and its metrics."""
    options = (*QUIET, TWO, f"runner.max_steps={STEPS}", f"runner.experiment_name={name}", *overrides)
    code, said = app.train_here(*options)
    assert code == 0, said
    return numbers_of(app.logs / name / f"checkpoints/global_step_{STEPS}"), app.metrics(name)


@pytest.mark.parametrize("further", [(), ("rollout.batching=stage",)], ids=["each", "stage"])
def test_an_env_worker_that_dies_costs_nothing_where_iterations_begin_anew(
    app: Any, monkeypatch: pytest.MonkeyPatch, further: tuple[str, ...]
) -> None:
    """In the first rollout epoch, in the second, and twice in one iteration: buffer and weights are those of a run without."""
    exact = ("env.train.auto_reset=false", *further)
    whole, _ = ran(app, "whole", *exact)
    with monkeypatch.context() as patched:
        deaths = Deaths(patched, rank=1, at=[3, 33, 50])
        found, rows = ran(app, "broken", *exact)
    assert not deaths.at
    assert whole.keys() == found.keys()
    for name, array in whole.items():
        # With others in one pass of the policy, the last digits may differ.
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-4 if further else 0, err_msg=name)
    told = [row for row in rows if "env/restarts" in row][-1]
    assert (told["env/restarts"], told["env/dropped_episodes"]) == (3, 6), "two environments each time"


def test_what_was_sent_before_a_death_counts_once_while_it_plays_ahead(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With episodes that go on over iterations, and the next iteration under way: no transition joins what two processes played."""
    Deaths(monkeypatch, rank=0, at=[25, 81, 139])
    _, rows = ran(app, "ahead", "rollout.max_lag=1", "rollout.pipeline_stage_num=2")
    assert sizes(rows) == [64, 128, 192, 256]
    assert [row for row in rows if "env/restarts" in row][-1]["env/restarts"] == 3
    physical(app.logs / f"ahead/checkpoints/global_step_{STEPS}", 256)


def physical(checkpoint: Path, transitions: int) -> None:
    """Each transition of a buffer is one that the pendulum makes; there are so many."""
    buffer = ReplayBuffer(capacity=100_000, producers=4, gamma=0.99, seed=0)
    buffer.load(checkpoint / "actor/replay_0")
    assert len(buffer) == transitions
    drawn = buffer.sample(40 * transitions)
    before, after = drawn.observation["states"], drawn.observation_next["states"]
    assert len(np.unique(before, axis=0)) > 0.9 * transitions, "nearly all are drawn"
    angle, speed = np.arctan2(before[:, 1], before[:, 0]), before[:, 2]
    moved = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * drawn.action[:, 0, 0]) * 0.05, -8.0, 8.0)
    turned = angle + moved * 0.05
    np.testing.assert_allclose(after, np.stack([np.cos(turned), np.sin(turned), moved], axis=1), atol=1e-3)


def test_a_worker_that_dies_more_often_than_it_may_ends_the_run(app: Any) -> None:
    code, said = app.train_here(*QUIET, "runner.max_steps=2", "env.max_restarts=-1")
    assert code == 2
    assert "env.max_restarts: expected at least 0, found -1" in said


def on_ray(app: Any, folder: Path, steps: int, *overrides: str) -> tuple[str, ...]:
    simulated = f"env.train.init_params={{folder: '{folder}', step_s: 0.02}}"
    marked = ("env.train.env_type=toy_restarts:MarkedPendulum", simulated)
    syncs = f"actor.weight_syncer={{type: 'toy_restarts:MarkedSync', folder: '{folder}'}}"
    backend = ("cluster.backend=ray", TWO, "env.max_restarts=20", f"runner.max_steps={steps}", "runner.save_interval=1")
    return (*QUIET, *marked, syncs, *backend, *overrides)


KILLS = 6
"""Of one start of a run, well below `env.max_restarts`."""


def kill_at_random(processes: Any, run: subprocess.Popen[str], folder: Path, drawn: random.Random) -> list[str]:
    """Ends workers of a run by SIGKILL, one after another; returns their names.

    No more than `KILLS`, as on a slow machine a worker would never come to do anything, and be restarted more often than it may.
    """
    killed: list[str] = []
    while run.poll() is None and len(killed) < KILLS:
        time.sleep(drawn.uniform(1.0, 6.0))
        names = [name for name in ("env-0", "env-1", "env-1", "env-0", "actor-0") if (folder / name).exists()]
        if not names or run.poll() is not None:
            continue
        name = drawn.choice(names)
        pid = int((folder / name).read_text())
        if pid in processes.descendants(run.pid) and processes.alive({pid}):
            os.kill(pid, signal.SIGKILL)
            killed.append(name)
            (folder / name).unlink()
    return killed


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("max_lag", "seed"), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)])
def test_none_is_lost_and_none_is_there_twice_whoever_is_killed(
    app: Any, processes: Any, tmp_path: Path, max_lag: int, seed: int
) -> None:
    """Env workers and the learner, at random; the run is resumed until it is through, and every transition is there once."""
    steps, drawn, folder = 12, random.Random(seed), tmp_path / "marks"
    folder.mkdir()
    options = on_ray(app, folder, steps, f"rollout.max_lag={max_lag}", "runner.resume_dir=auto")
    killed: list[str] = []
    for attempt in range(6):
        for stale in folder.iterdir():
            stale.unlink()
        run = app.start(*options)
        # After some attempts a run is left alone, so that the test ends.
        killed += kill_at_random(processes, run, folder, drawn) if attempt < 4 else []
        _, errors = run.communicate()
        if run.returncode == 0:
            break
        assert re.search(r"WorkerError: (actor\[0\]|env\[.\] failed in (evaluate|connect)\(\)).* killed by SIGKILL", errors), errors
    assert run.returncode == 0, errors
    assert killed
    experiment = app.logs / "pendulum_sac"
    rows = [row for row in app.metrics("pendulum_sac") if "train/replay_buffer/size" in row]
    found = {row["step"]: row["train/replay_buffer/size"] for row in rows}
    assert found == {step: 64 * step for step in range(1, steps + 1)}
    saved = newest_checkpoint(experiment)
    assert saved is not None
    physical(saved, 64 * steps)
    print(f"max_lag {max_lag}, seed {seed}: killed {killed}")

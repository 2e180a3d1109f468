"""The recipe of a simulated arm: recorded, learned at the hardware of another node with a person beside it, killed and resumed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlinf.envs.realworld import ControllerClient, Serving
from rlinf.envs.rendering.mujoco import can_render

pytest.importorskip("mujoco")

RECIPE = "franka_sim_rlpd"
SHORT = (
    *(
        "runner.max_steps=3",
        "runner.val_check_interval=0",
        "runner.keep_best=false",
        "runner.save_interval=2",
        "runner.save_minutes=0",
    ),
    *("actor.global_batch_size=16", "algorithm.start_steps=16", "env.train.max_steps_per_rollout_epoch=8"),
    *("env.eval.final_episodes=1", "env.eval.max_episode_steps=10"),
)
PERSON = "env.train.wrappers=[{type: interventions, source: scripted, probability: 0.5, steps: 3}]"


@pytest.fixture
def arm() -> Iterator[Any]:
    """The controller of an arm whose time is stepped."""
    server = Serving(robot="simulated_franka", clock="stepped").built()
    server.start()
    yield server
    server.close()


def at(address: str) -> tuple[str, ...]:
    """The learner is on node 0, and the arm stands at node 1."""
    configs = f"[{{node_rank: 1, controller: '{address}'}}]"
    return (
        "cluster.num_nodes=2",
        "cluster.virtual_accelerators={count: 1, nodes: {1: {count: 0}}}",
        f"cluster.node_groups=[{{label: arm, node_ranks: 1, hardware: {{type: SimulatedArm, configs: {configs}}}}}]",
        'cluster.component_placement={actor: "0", rollout: "0", env: {node_group: arm, placement: 0}}',
    )


def recorded(app: Any) -> str:
    folder = app.logs / "demonstrations"
    code, said = app.here("collect.py", "--config-name", RECIPE, "--episodes=3", "--fps=10", "--out", str(folder))
    assert code == 0, said
    assert "3 of them solved" in said
    return f"algorithm.demo_buffer.path={folder}"


def test_an_arm_at_another_node_is_learned_with_while_a_person_intervenes(app: Any, arm: Any) -> None:
    shown = recorded(app)
    code, said = app.train_here("--config-name", RECIPE, *SHORT, *at(arm.address), shown, PERSON)
    assert code == 0, said
    rows = [row for row in app.metrics(RECIPE) if "train/replay_buffer/size" in row]
    assert [row["train/replay_buffer/size"] for row in rows] == [8, 16, 24]
    acted = np.cumsum([row["env/interventions/steps"] for row in rows])
    assert acted[-1] > 0
    assert [row["train/demo_buffer/interventions"] for row in rows] == acted.tolist()
    assert all(row["env/interventions/of_steps"] == 8 for row in rows)
    assert all(row["env/robot/stops"] == row["env/robot/refused"] == 0 for row in rows)
    assert rows[-1]["train/demo_buffer/size"] > 0
    assert "train/critic_loss" in rows[-1]
    # The arm that was driven is the one of the hardware.
    assert arm.now > 24 * 0.1


@pytest.mark.slow
def test_a_learner_that_is_killed_leaves_an_arm_that_stands_still_and_its_run_resumes(app: Any) -> None:
    server = Serving(robot="simulated_franka", clock="real").built()
    server.start()
    watching = ControllerClient(server.address)
    options = ["--config-name", RECIPE, *SHORT, *at(server.address), "algorithm.demo_buffer=null", "runner.max_steps=6"]
    learner, checkpoint, end = app.start(*options), app.logs / RECIPE / "checkpoints/global_step_2", time.monotonic() + 300
    try:
        while not checkpoint.exists() or watching.state().holding:
            assert learner.poll() is None, learner.communicate()[1]
            assert time.monotonic() < end, "no checkpoint, or the arm was not driven again"
            time.sleep(0.02)
        learner.kill()
        learner.communicate()
        while not watching.state().holding or np.abs(watching.state().velocity).max() > 0.02:
            assert time.monotonic() < end
        assert watching.state().stop_s <= 0.2
        code, said = app.train_here(*options, f"runner.resume_dir={checkpoint}")
        assert code == 0, said
        assert [row["step"] for row in app.metrics(RECIPE) if "train/critic_loss" in row][-4:] == [3, 4, 5, 6]
    finally:
        learner.kill()
        watching.close()
        server.close()


def test_a_classifier_of_a_few_labelled_frames_is_the_reward_of_a_run(app: Any) -> None:
    pytest.importorskip("OpenGL")
    if not can_render():
        pytest.skip("MuJoCo can't draw here")
    recipe, shown, folder = "franka_sim_camera_rlpd", app.logs / "labelled", app.logs / "classifier"
    recorded_frames = ("--episodes=8", "--speed=0.6", "--noise=0.5", "--format=numpy", "--out", str(shown))
    code, said = app.here("collect.py", "--config-name", recipe, *recorded_frames)
    assert code == 0, said
    code, said = app.here("reward_classifier.py", "--data", str(shown), "--out", str(folder), "--steps=60")
    assert code == 0, said
    counted = re.search(r"learned from (\d+) frames, (\d+) of them solved; of 2 episodes held out it knows (\d) of 2 solved", said)
    assert counted is not None, said
    assert 0 < int(counted[2]) < int(counted[1])
    judged = f"env.train.init_params.success_params.folder={folder}"
    code, said = app.train_here("--config-name", recipe, *SHORT, judged, "algorithm.demo_buffer=null")
    assert code == 0, said
    assert [row["train/replay_buffer/size"] for row in app.metrics(recipe) if "train/critic_loss" in row][-1] == 24
    code, said = app.train_here("--config-name", recipe, *SHORT, f"{judged}/none", "algorithm.demo_buffer=null")
    assert code != 0
    assert "no file 'config.json'" in said
    code, said = app.here("reward_classifier.py", "--data", str(shown), "--out", str(folder), "--key=wrist_images")
    assert code == 2
    assert "--data: episode 2 does not record frames 'wrist_images'" in said

"""DAgger on real parts in one process: played, labelled, added to one dataset, learned, resumed, and refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sft_run import CLUSTER, demonstrate, learn, metrics, refused, weights

from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.envs.offline import LeRobot
from rlinf.runners.embodied_sft.dagger import DatasetAggregation

pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
GIVEN = 4


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demonstrations")
    demonstrate(folder / "push", "push", GIVEN)
    return folder / "push"


def recipe(logs: Path, data: Path, **runner: Any) -> dict[str, Any]:
    steps = {"max_steps": 3, "steps_per_iteration": 2, "logger": {"log_path": str(logs), "logger_backends": []}}
    played = {"env_type": "tabletop", "init_params": {"task": "push"}, "total_num_envs": 3, "episodes": 4, "max_episode_steps": 12}
    return {
        "runner": {"task_type": "embodied_sft", "experiment_name": "run", **steps, **runner},
        "cluster": CLUSTER,
        "data": {"path": str(data), "val_episodes": 1},
        "dagger": {"episodes": 4},
        "env": {"eval": {**played, "video_cfg": {"save_video": False}}},
        "actor": {"model": {"model_type": "mlp_policy"}, "optim": {"lr": 1e-3}, "global_batch_size": 16},
    }


def visited(checkpoint: Path) -> list[OfflineEpisode]:
    return list(LeRobot(path=str(checkpoint.parents[1] / "dataset")).open().episodes())


def same(one: list[OfflineEpisode], other: list[OfflineEpisode]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a.action, b.action) and np.array_equal(a.observation["states"], b.observation["states"])
        for a, b in zip(one, other, strict=True)
    )


def test_rounds_are_added_to_one_dataset_and_learned(tmp_path: Path, demonstrations: Path) -> None:
    data = recipe(tmp_path, demonstrations, val_check_interval=2)
    data["env"]["eval"]["wrappers"] = [{"type": "latency", "steps": 1}]
    checkpoint = learn(data)
    episodes, rows = visited(checkpoint), metrics(checkpoint)
    assert len(episodes) == GIVEN + 2 * 4
    assert all(np.asarray(episode.intervened).all() for episode in episodes[:GIVEN])
    assert [row["dagger/beta"] for row in rows[1:3]] == [0.5, 0.25]
    shares = [np.concatenate([np.asarray(e.intervened) for e in part]).mean() for part in (episodes[4:8], episodes[8:])]
    assert [row["dagger/interventions"] for row in rows[1:3]] == pytest.approx(shares)
    # One of those with which the run began is held out.
    learned = [sum(map(len, episodes[: GIVEN - 1])), sum(map(len, episodes)) - len(episodes[GIVEN - 1])]
    assert [rows[0].get("data/examples", learned[0]), rows[2]["data/examples"]] == learned
    assert 0 <= rows[1]["eval/success_once"] <= 1
    assert rows[-1]["data/examples"] == learned[1]
    # Demonstrations alone are learned first, and stay as they are.
    assert len(LeRobot(path=str(demonstrations)).open()) == GIVEN

    # Whatever plays side by side: the same episodes in the same order, but for how a batch is rounded.
    data["env"]["eval"]["total_num_envs"] = 2
    data["runner"] |= {"experiment_name": "other", "max_steps": 2, "val_check_interval": 0}
    for one, other in zip(visited(learn(data))[GIVEN:], episodes[GIVEN:8], strict=True):
        assert one.intervened is not None
        assert other.intervened is not None
        assert one.intervened.tolist() == other.intervened.tolist()
        np.testing.assert_allclose(one.observation["states"], other.observation["states"], atol=1e-3)


@pytest.mark.slow
def test_only_interventions_are_learned_if_it_is_told(tmp_path: Path, demonstrations: Path) -> None:
    data = recipe(tmp_path, demonstrations, max_steps=2)
    data["dagger"]["learn"] = "interventions"
    checkpoint = learn(data)
    episodes = visited(checkpoint)
    acted = sum(int(np.asarray(episode.intervened).sum()) for episode in episodes)
    assert metrics(checkpoint)[-1]["data/examples"] == acted - len(episodes[GIVEN - 1])


@pytest.mark.parametrize("moment", ["run", pytest.param("grow", marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_goes_on_to_the_bit(
    tmp_path: Path, demonstrations: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Stopped in order, by Ctrl-C in the second round, or killed after the third, which no checkpoint knows of."""
    whole = learn(recipe(tmp_path / "whole", demonstrations, max_steps=4))
    parts = recipe(tmp_path / "parts", demonstrations, max_steps=4, save_interval=2)
    grow = DatasetAggregation.grow

    def stopped(self: DatasetAggregation, step: int) -> Any:
        found = grow(self, step)
        if moment == "grow" and step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        if moment == "run" and step == 3:
            raise RuntimeError("killed")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(DatasetAggregation, "grow", stopped)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            learn(parts)
    left = len(LeRobot(path=str(tmp_path / "parts/run/dataset")).open())
    assert left == (GIVEN + 2 * 4 if moment == "grow" else GIVEN + 3 * 4)
    parts["runner"]["resume_dir"] = "auto"
    again = learn(parts)
    assert all(torch.equal(weights(again)[name], tensor) for name, tensor in weights(whole).items())
    assert same(visited(again), visited(whole))


@pytest.mark.slow
def test_a_run_goes_on_in_another_folder(tmp_path: Path, demonstrations: Path) -> None:
    first = learn(recipe(tmp_path, demonstrations, max_steps=2))
    again = learn(recipe(tmp_path, demonstrations, max_steps=3, experiment_name="branch", resume_dir=str(first)))
    assert same(visited(again)[: GIVEN + 4], visited(first))
    assert (len(visited(first)), len(visited(again))) == (GIVEN + 4, GIVEN + 8)
    other = recipe(tmp_path, demonstrations, max_steps=3, experiment_name="branch", resume_dir=str(first))
    other["data"]["episodes"] = GIVEN - 1
    with pytest.raises(ConfigError, match=f"expected the {GIVEN} episodes with which the run of"):
        learn(other)


def test_what_can_not_be_done_is_refused_before_a_worker_starts(tmp_path: Path, demonstrations: Path) -> None:
    nobody = recipe(tmp_path, demonstrations)
    nobody["env"]["eval"] |= {"env_type": "gymnasium", "init_params": {"env_id": "Pendulum-v1"}}
    refused(nobody, "env.eval.env_type: 'gymnasium' has no scripted expert", "These have one: metaworld, realworld, tabletop")
    share = recipe(tmp_path, demonstrations)
    share["dagger"]["init_beta"] = 1.5
    refused(share, "dagger.init_beta")
    nowhere = {key: section for key, section in recipe(tmp_path, demonstrations).items() if key != "env"}
    refused(nowhere, "dagger: there is no env", "env.eval.env_type")
    demonstrate(tmp_path / "rgb", "push", 2, obs_mode="rgb", image_size=8)
    other = recipe(tmp_path, tmp_path / "rgb")
    refused(other, "data.keys.states: '", "has the shape [2]", "'tabletop'", "[10]")

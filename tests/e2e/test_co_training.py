"""Demonstrations beside reinforcement learning, on real parts in one process: what is added, drawn, resumed and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sft_run import CLUSTER, demonstrate, metrics, weights

from rlinf.core.errors import ConfigError
from rlinf.runners import open_run_folder, read_embodied
from rlinf.runners.config.compat import ELSEWHERE
from rlinf.runners.embodied.task_type import embodied
from rlinf.runners.embodied_sft.co_training import CoTraining, check_co_training
from rlinf.scheduler import Cluster

pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
FLOW = {"model_type": "flow_policy", "hidden_sizes": [32], "num_action_chunks": 2}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demonstrations") / "state"
    demonstrate(folder, task="slots", episodes=6, noise=0.2, num_envs=6)
    return folder


def recipe(logs: Path, data: Path, name: str = "rl", **co_training: Any) -> dict[str, Any]:
    env = {"env_type": "tabletop", "init_params": {"task": "slots"}, "total_num_envs": 4, "max_steps_per_rollout_epoch": 4}
    return {
        "runner": {"experiment_name": name, "max_steps": 2, "logger": {"log_path": str(logs)}},
        "cluster": CLUSTER,
        "env": {
            "train": {**env, "auto_reset": False},
            "eval": {"total_num_envs": 4, "episodes": 4, "video_cfg": {"save_video": False}},
        },
        "actor": {"model": dict(FLOW), "optim": {"lr": 1e-3}, "global_batch_size": 8},
        "algorithm": {"update_epoch": 1, "co_training": {"path": str(data), **co_training}},
    }


def train(data: dict[str, Any]) -> Path:
    cfg = read_embodied(data)
    assert embodied.check is not None
    embodied.check(cfg)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        runner = embodied.start(cfg, cluster, open_run_folder(cfg))
        runner.init_workers()
        runner.run()
    return Path(cfg.runner.logger.log_path) / cfg.runner.experiment_name / f"checkpoints/global_step_{cfg.runner.max_steps}"


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(other[name], tensor) for name, tensor in one.items())


def test_demonstrations_are_learned_and_a_run_goes_on_to_the_bit(tmp_path: Path, demonstrations: Path) -> None:
    plain = recipe(tmp_path, demonstrations, "plain")
    del plain["algorithm"]["co_training"]
    without = train(plain)
    measured = train(recipe(tmp_path, demonstrations, "measured", weight=0.0))
    assert same(weights(without), weights(measured))
    assert "train/sft_loss" not in metrics(without)[0]
    whole = train(recipe(tmp_path, demonstrations, "whole", weight=5.0))
    assert not same(weights(without), weights(whole))
    assert metrics(whole)[0]["train/sft_loss"] > 0 < metrics(measured)[0]["train/sft_loss"]
    parts = recipe(tmp_path, demonstrations, "parts", weight=5.0)
    parts["runner"]["max_steps"] = 1
    first = train(parts)
    parts["runner"] |= {"max_steps": 2, "resume_dir": str(first)}
    assert same(weights(whole), weights(train(parts)))


class Keeps:
    """A trainer that keeps what is added."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def add_policy_loss(self, micro_batches: Any, loss: Any, *, weight: float) -> Any:
        self.parts = list(micro_batches)
        return {"loss": weight}

    def step_policy(self, micro_batches: Any, loss: Any) -> Any: ...

    def measure_policy(self, micro_batches: Any, loss: Any) -> Any: ...


class Imitates:
    def sft_loss(self, env_obs: Any, action: Any, *, mask: Any = None, generator: Any = None) -> Any: ...


def test_each_rank_draws_from_its_own_episodes_by_number(tmp_path: Path, demonstrations: Path) -> None:
    data = recipe(tmp_path, demonstrations, batch_size=7)
    data["actor"]["micro_batch_size"] = 2
    cfg, seen = read_embodied(data), list[list[list[float]]]()
    for rank in range(2):
        trainer = Keeps()
        drawn = CoTraining(cfg, Imitates(), trainer, rank=rank, world_size=2)
        drawn.add(3, 0, 1)
        assert [len(part) for part in trainer.parts] == [[2, 2], [2, 1]][rank]
        seen.append(torch.cat([torch.as_tensor(part.trajectory.action) for part in trainer.parts]).flatten(1).tolist())
        for update, alike in (((3, 0, 1), True), ((3, 0, 2), False), ((4, 0, 1), False)):
            drawn.add(*update)
            again = torch.cat([torch.as_tensor(part.trajectory.action) for part in trainer.parts]).flatten(1).tolist()
            assert (again == seen[-1]) is alike
    assert not [row for row in seen[0] if row in seen[1]]


def test_what_does_not_fit_is_refused_before_a_worker_starts(tmp_path: Path, demonstrations: Path) -> None:
    def refused(data: dict[str, Any], *words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            check_co_training(read_embodied(data))
        assert all(word in str(caught.value) for word in words), str(caught.value)

    data = recipe(tmp_path, demonstrations, chunk_length=1)
    refused(data, "algorithm.co_training.chunk_length", "expected at least the 2 steps", "found 1")
    data = recipe(tmp_path, demonstrations)
    data["actor"]["model"] = {"model_type": "openvla_oft", "preset": "tiny", "num_action_chunks": 2, "max_prompt_length": 32}
    data["env"]["train"]["init_params"]["obs_mode"] = "rgb"
    refused(data, "algorithm.co_training.keys", "'openvla_oft' sees 'main_images'", "observation.state")
    data = recipe(tmp_path, demonstrations)
    data["env"]["train"] |= {"env_type": "gymnasium", "init_params": {"env_id": "Pendulum-v1"}}
    data["env"]["eval"] |= {"env_type": "gymnasium", "init_params": {"env_id": "Pendulum-v1"}}
    refused(data, "algorithm.co_training.action", "env.train.env_type 'gymnasium'", "[1]", "[2]")
    data = recipe(tmp_path, demonstrations, weight=-0.1)
    refused(data, "algorithm.co_training.weight")
    data = recipe(tmp_path, demonstrations)
    data["actor"]["model"] = {"model_type": "cma"}
    refused(data, "actor.model.model_type", "'cma' has a memory", "algorithm.co_training")
    config = read_embodied(recipe(tmp_path, demonstrations)).algorithm.co_training
    assert config is not None
    for examples, ranks, word in ((3, 4, "3 examples"), (8, 7, "the 6 episodes")):
        with pytest.raises(ConfigError, match=word):
            config.check_ranks(examples, ranks)


def test_a_policy_without_such_a_loss_is_named(tmp_path: Path, demonstrations: Path) -> None:
    cfg = read_embodied(recipe(tmp_path, demonstrations))
    with pytest.raises(ConfigError, match=r"actor\.model\.model_type: 'flow_policy' makes a object, which can't learn"):
        CoTraining(cfg, object(), Keeps(), rank=0, world_size=1)
    with pytest.raises(ConfigError, match=r"actor\.training_backend: 'fsdp' can't add the loss"):
        CoTraining(cfg, Imitates(), object(), rank=0, world_size=1)


def test_names_of_others_are_told() -> None:
    for section in ("actor", "algorithm"):
        assert "algorithm.co_training" in ELSEWHERE[f"{section}.enable_sft_co_train"]
        assert "weight: 0.1" in ELSEWHERE[f"{section}.sft_loss_weight"]

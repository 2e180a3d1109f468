"""A whole run of fine-tuning in this process, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlinf.core.errors import ConfigError
from rlinf.envs.recording import LeRobotWriter, record_expert
from rlinf.envs.tabletop import Tabletop
from rlinf.runners import open_run_folder, read_embodied_sft
from rlinf.runners.embodied_sft.rules import check_data
from rlinf.runners.embodied_sft.task_type import embodied_sft
from rlinf.scheduler import Cluster

CLUSTER = {"backend": "local", "virtual_accelerators": {"count": 1}, "component_placement": {"actor,rollout,env": "0"}}


def demonstrate(folder: Path, task: Any, episodes: int, *, noise: float = 0.0, num_envs: int = 4, **params: Any) -> None:
    """Records episodes of the tabletop's expert, as a LeRobot dataset of images."""
    env = Tabletop(task=task, **params).make(num_envs, max_episode_steps=None, ignore_terminations=False, render=False)
    record_expert(env, LeRobotWriter(folder, fps=20, use_videos=False, finalize_interval=9), episodes=episodes, noise=noise)


def a_run(logs: Path, data: Path, model: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The configuration of a short run that learns from a dataset."""
    return {
        "runner": {"task_type": "embodied_sft", "experiment_name": "run", "max_steps": 1, "logger": {"log_path": str(logs)}},
        "cluster": CLUSTER,
        "data": {"path": str(data), **more},
        "actor": {"model": dict(model), "optim": {"lr": 3e-3}, "global_batch_size": 16},
    }


def learn(data: dict[str, Any]) -> Path:
    """A whole run; the folder of its last checkpoint."""
    cfg = read_embodied_sft(data)
    check_data(cfg)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        runner = embodied_sft.start(cfg, cluster, open_run_folder(cfg))
        runner.init_workers()
        return Path(str(runner.run()))


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "actor/model.safetensors")


def metrics(checkpoint: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (checkpoint.parents[1] / "metrics.jsonl").read_text().splitlines()]


def refused(data: dict[str, Any], *parts: str) -> None:
    """The configuration is refused, in words that have these parts."""
    with pytest.raises(ConfigError) as caught:
        check_data(read_embodied_sft(data))
    for part in parts:
        assert part in str(caught.value), str(caught.value)

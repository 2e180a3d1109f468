"""A whole run of fine-tuning in this process, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlinf.runners import open_run_folder, read_embodied_sft
from rlinf.runners.embodied_sft.rules import check_data
from rlinf.runners.embodied_sft.task_type import embodied_sft
from rlinf.scheduler import Cluster


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

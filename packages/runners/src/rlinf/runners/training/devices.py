"""Where a worker computes."""

from __future__ import annotations

from typing import Any

from rlinf.core.protocols import Trainer, TrainerConfig
from rlinf.core.worker import Worker
from rlinf.runners.lazy import torch


def device_of(worker: Worker) -> torch.device:
    """The first accelerator that a worker was placed on, of which it sees no others; the CPU where torch knows none."""
    if not worker.has_device or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator() or "cpu")


def placed(policy: Any, worker: Worker) -> Any:
    """The policy, its weights on the worker's device; one that is no module stays as it is."""
    return policy.to(device_of(worker)) if isinstance(policy, torch.nn.Module) else policy


def build_trainer(config: TrainerConfig, policy: Any, worker: Worker, training_steps: int) -> Trainer:
    """The trainer of a worker's rank, whose schedules span so many optimizer steps; every rank calls it."""
    return config.build(
        policy, rank=worker.rank, world_size=worker.world_size, rendezvous=worker.rendezvous, training_steps=training_steps
    )


def give_back() -> None:
    """Gives memory that this process has freed on its devices to other processes, too; torch would keep it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()

"""Where a worker computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlinf.core.worker import Worker

NOT_REAL = ("", "VIRTUAL")
"""What a worker was placed on where torch has no device for it."""


def device_of(worker: Worker) -> torch.device:
    """The first accelerator that a worker was placed on, of which it sees no others; the CPU where torch knows none."""
    if worker.accelerator_type in NOT_REAL or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator() or "cpu")


def placed(policy: Any, worker: Worker) -> Any:
    """The policy, its weights on the worker's device; one that is no module stays as it is."""
    return policy.to(device_of(worker)) if isinstance(policy, nn.Module) else policy

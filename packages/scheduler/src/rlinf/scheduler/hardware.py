"""What one machine has to place workers on; found without importing a heavy library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.config import ClusterConfig

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    cores: int
    """CPU cores that this process may use."""
    accelerators: int
    """How many devices can be named in a placement; 0 places on the node itself."""
    virtual: bool
    """The accelerators stand for CPU cores."""

    def describe(self) -> str:
        """One line for a person."""
        if not self.accelerators:
            return f"1 node with {self.cores} CPU cores and no accelerator"
        kind = "virtual accelerators" if self.virtual else "NVIDIA GPUs"
        return f"1 node with {self.cores} CPU cores and {self.accelerators} {kind} (0-{self.accelerators - 1})"


def detect(config: ClusterConfig) -> Node:
    """This machine, as the configuration wants it seen."""
    cores = len(os.sched_getaffinity(0))
    if config.virtual_accelerators is not None:
        return Node(cores=cores, accelerators=config.virtual_accelerators.count, virtual=True)
    return Node(cores=cores, accelerators=_nvidia_gpus(), virtual=False)


def _nvidia_gpus() -> int:
    """GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, or all that the driver lists."""
    present = len(list(NVIDIA_GPUS.iterdir())) if NVIDIA_GPUS.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    return min(present, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))

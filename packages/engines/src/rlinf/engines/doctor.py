"""What `rlinf doctor` says of devices: what torch was built for, and whether it computes on each device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rlinf.core.doctor import GIB, Finding


def devices() -> Iterator[Finding]:
    """torch, and each GPU with a product of matrices."""
    build = (
        f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "a CPU build"
    )
    told = f"{torch.__version__} ({build}), {torch.get_num_threads()} threads"
    yield Finding(subject="torch", state="ok", told=told)
    if not torch.cuda.is_available():
        # The driver is there although torch can't use it.
        driver = Path("/proc/driver/nvidia/version").exists()
        remedy = "Install the torch that was built for this driver." if driver else ""
        yield Finding(subject="GPU", state="FAULT" if driver else "no", told="torch finds none", remedy=remedy)
        return
    for index in range(torch.cuda.device_count()):
        _, memory = torch.cuda.mem_get_info(index)
        told = f"{torch.cuda.get_device_name(index)}, {memory / GIB:.0f} GiB, {_computes(index)}"
        yield Finding(subject=f"cuda:{index}", state="ok", told=told)


def _computes(index: int) -> str:
    """A product of matrices in bf16 on a GPU; an error of the driver comes out as it is."""
    one = torch.ones(64, 64, dtype=torch.bfloat16, device=f"cuda:{index}")
    value = (one @ one)[0, 0].item()
    if value != 64.0:
        raise RuntimeError(f"cuda:{index}: a product of ones is {value}, expected 64")
    return "multiplies in bf16"

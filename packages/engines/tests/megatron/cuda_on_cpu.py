"""Lets the pieces of Megatron that ask for CUDA run on a CPU: for tests of pipelines and divided activations alone."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import random
from torch.overrides import TorchFunctionMode

from rlinf.engines.megatron import _trainer


class CudaOnCpu(TorchFunctionMode):
    """Whoever creates a tensor on CUDA gets one on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "cpu")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def pretend() -> CudaOnCpu:
    """Also answers what is asked of the current device; enter what it returns."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda *_, **__: None
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda *_, **__: None
    torch.cuda.manual_seed = lambda *_: None
    _trainer.check_device = lambda *_, **__: None
    return CudaOnCpu()

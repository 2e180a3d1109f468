"""The layout of FSDP2; imported only where several ranks share, since importing FSDP takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rlinf.engines.layout import total_square
from rlinf.engines.ranks import Ranks


class Sharded:
    """Each tensor's first axis is divided over ranks; the module is one unit, gathered for a whole step.

    Args:
        module: whose parameters are replaced by their shards.
        ranks: who shares.
        device: where the weights are.
    """

    def __init__(self, module: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self._world_size = ranks.world_size
        fully_shard(module, mesh=init_device_mesh(device.type, (ranks.world_size,)))
        self._module = cast("FSDPModule", module)

    def begin(self, *, last: bool) -> None:
        """Ranks communicate in the first forward and the last backward pass only, so they may have different numbers of both."""
        self._module.set_requires_gradient_sync(last)
        self._module.set_reshard_after_backward(last)

    def rest(self) -> None:
        """Gives back the gathered weights."""
        self._module.reshard()

    @torch.no_grad()
    def collect(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """The gradients; FSDP gives their mean over ranks, and this undoes it."""
        gradients = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(self._world_size)
        return gradients

    def square_norm(self, gradients: Sequence[Tensor]) -> float:
        """That of this rank's shards."""
        return total_square(gradients)

    def whole(self, tensor: Tensor) -> Tensor:
        """The shards of all ranks, put together."""
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return gathered.detach().to("cpu", copy=True)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's shard."""
        moved = whole.to(like.device)
        return distribute_tensor(moved, like.device_mesh, like.placements) if isinstance(like, DTensor) else moved


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

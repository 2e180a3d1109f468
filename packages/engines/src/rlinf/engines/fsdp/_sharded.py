"""The layout of FSDP2; imported only where it is used, since importing FSDP takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rlinf.engines.fsdp.config import Computed, FSDPConfig
from rlinf.engines.fsdp.masters import MasterWeights
from rlinf.engines.fsdp.rescoring import DTYPES
from rlinf.engines.layout import total_square
from rlinf.engines.ranks import Ranks


class Sharded:
    """Each tensor's first axis is divided over ranks; blocks are gathered for themselves, and the rest at once.

    Args:
        module: whose parameters are replaced by their shards.
        blocks: modules inside it that are gathered one at a time.
        ranks: who shares.
        device: where is computed.
        config: how.
        masters: in what each weight is kept and computed with.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        ranks: Ranks,
        device: torch.device,
        config: FSDPConfig,
        masters: MasterWeights,
    ) -> None:
        self._world_size = ranks.world_size
        self._replicas = ranks.world_size // (config.shard_group_size or ranks.world_size)
        self._keeps = config.sharding_strategy == "shard_grad_op"
        self._accumulates = config.enable_gradient_accumulation
        frozen = {parameter for parameter in module.parameters() if not parameter.requires_grad}
        mesh, offload = self._mesh(device, config), _offload(config, device)
        ignored = frozen if config.ignore_frozen else None
        policy, precise = _precision(config, masters.less), list(masters.precise())
        units, inside = {*blocks, *precise}, {child for each in precise for child in each.modules()}
        own = replace(policy, param_dtype=None)
        # What is inside another unit comes first. A block is made float32 just before its shards are: never the whole at once.
        ordered = [child for child in reversed(list(module.modules())) if child in units and child is not module]
        for unit in (*ordered, module):
            masters.raise_weights(unit)
            # The backward pass begins with the root, so that it is not given back before.
            again = unit is not module and not self._keeps
            mixed = own if unit in inside else policy
            fully_shard(
                unit, mesh=mesh, reshard_after_forward=again, mp_policy=mixed, offload_policy=offload, ignored_params=ignored
            )
        self._root = cast("FSDPModule", module)
        self._gathered = [cast("FSDPModule", each) for each in (*ordered, module)]
        self._ranks, self._touched = ranks, set[nn.Parameter]()
        # Rows may differ in what they touch: a rank adds zeros for what another used, or their messages would not fit each other.
        add_zeros: Callable[[bool], None] | None = getattr(self._root, "set_reduce_scatter_unused_params", None)
        self._fills = self._world_size > 1 and add_zeros is not None  # torch before 2.13 can't
        if self._fills and add_zeros is not None:
            add_zeros(True)
            for unit in (*ordered, module):
                unit.register_forward_pre_hook(self._watching(dict(unit.named_parameters())))

    def _watching(self, shards: Mapping[str, nn.Parameter]) -> Callable[[nn.Module, object], None]:
        """A hook that notes in each backward pass which of a unit's own weights got a gradient on this rank.

        Args:
            shards: what the optimizer knows, by name; in a forward pass the whole weights are in their places.
        """
        seen = False

        def watch(unit: nn.Module, _: object) -> None:
            nonlocal seen
            # The whole weights are the same parameters in every pass.
            if seen:
                return
            seen = True
            for name, whole in unit.named_parameters():
                # Those of units inside are not gathered yet.
                if whole.requires_grad and not isinstance(whole, DTensor):
                    note = partial(self._note, shards[name])
                    cast("Any", whole).register_post_accumulate_grad_hook(note)

        return watch

    def _note(self, shard: nn.Parameter, _: Tensor) -> None:
        self._touched.add(shard)

    def _mesh(self, device: torch.device, config: FSDPConfig) -> DeviceMesh:
        if config.shard_group_size is None:
            return init_device_mesh(device.type, (self._world_size,))
        shape = (self._replicas, config.shard_group_size)
        return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))

    @property
    def lockstep(self) -> bool:
        """Blocks are gathered in each pass, unless they are kept for the whole step and gradients wait for its end."""
        return not (self._keeps and self._accumulates) and self._world_size > 1

    def begin(self, *, last: bool) -> None:
        """Gradients are added over ranks in the last backward pass, or in each."""
        self._root.set_requires_gradient_sync(last or not self._accumulates)
        self._root.set_reshard_after_backward(last or not self._keeps)

    def rest(self) -> None:
        """Gives back the gathered weights."""
        self._touched.clear()
        for module in self._gathered:
            module.reshard()

    @torch.no_grad()
    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """FSDP has given the mean of the gradients over ranks; this undoes the division. What no rank used has none."""
        if self._fills:
            used = self._ranks.all_reduce(torch.tensor([float(parameter in self._touched) for parameter in parameters]))
            for parameter, ranks in zip(parameters, used, strict=True):
                if not ranks:
                    parameter.grad = None
            self._touched.clear()
        for gradient in self.gradients(parameters):
            gradient.mul_(self._world_size)

    def gradients(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        return [self.local(parameter.grad) for parameter in parameters if parameter.grad is not None]

    def square_norm(self, gradients: Sequence[Tensor]) -> float:
        """That of this rank's shards, which as many ranks have as there are copies."""
        return total_square(gradients) / self._replicas

    def local(self, tensor: Tensor) -> Tensor:
        return cast("DTensor", tensor.detach()).to_local() if isinstance(tensor, DTensor) else tensor.detach()

    def whole(self, tensor: Tensor) -> Tensor:
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return gathered.detach().to("cpu", copy=True)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return whole.to(like.device)
        # With `cpu_offload` shards rest in host memory, and are exchanged on the device all the same.
        moved = whole.to(like.device_mesh.device_type)
        return distribute_tensor(moved, like.device_mesh, like.placements).to(like.device)


def _precision(config: FSDPConfig, less: torch.dtype | None) -> MixedPrecisionPolicy:
    """What was asked for; or what computes as the policy was built, whose own casts are enough."""
    chosen = config.mixed_precision
    computed = _dtype(chosen.param_dtype) or less
    reduced = _dtype(chosen.reduce_dtype) or (None if computed is None else torch.float32)
    return MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=reduced, cast_forward_inputs=chosen.param_dtype is not None)


def _dtype(precision: Computed | None) -> torch.dtype | None:
    return None if precision is None else DTYPES[precision]


def _offload(config: FSDPConfig, device: torch.device) -> OffloadPolicy:
    if not config.cpu_offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=config.offload_pin_memory and device.type != "cpu")

"""The weights that the optimizer changes, in float32, and the gradients that are added up for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Masters(nn.Module):
    """A float32 weight for each one that is computed with: the same one if that is float32 and nothing is shared.

    Gradients of a weight that is not float32 are added up in float32 as they come. Micikevicius et al., "Mixed Precision Training"
    (2017), arXiv:1710.03740. With `shares`, each rank keeps some rows: Rajbhandari et al., "ZeRO: Memory Optimizations Toward
    Training Trillion Parameter Models" (2019), arXiv:1910.02054, stage 1.

    Args:
        parameters: those that are computed with, by name.
        shares: the ranks over which the rows of each weight are divided; none to keep all.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], shares: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.computed = dict(parameters)
        self._shares = dict(shares or {})
        self.held: dict[str, nn.Parameter] = {}
        self._sums: dict[str, Tensor] = {}
        for name, parameter in self.computed.items():
            plain = parameter.dtype == torch.float32 and self._count(name) == 1
            held = parameter if plain else nn.Parameter(self.own(name, parameter.detach().float()).clone())
            self.held[name] = held
            # torch allows no dots in the name of a parameter.
            self.register_parameter(name.replace(".", "/"), held)
            if parameter.dtype != torch.float32:
                self._sums[name] = torch.zeros_like(parameter, dtype=torch.float32)
                cast("Any", parameter).register_post_accumulate_grad_hook(self._adder(name))

    def _count(self, name: str) -> int:
        """Over how many ranks the rows of a weight are divided."""
        return dist.get_world_size(self._shares[name]) if name in self._shares else 1

    def _adder(self, name: str) -> Any:
        def add(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._sums[name].add_(parameter.grad)
                # Otherwise the next pass would add to it in the type of the weight.
                parameter.grad = None

        return add

    def own(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor in the shape of a weight; where they can't be divided evenly, zeros are added."""
        count = self._count(name)
        if count == 1:
            return tensor
        rows, index = -(-len(tensor) // count), dist.get_rank(self._shares[name])
        missing = rows * count - len(tensor)
        if missing:
            tensor = torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])
        return tensor[index * rows : (index + 1) * rows]

    def whole(self, name: str, own: Tensor) -> Tensor:
        """What `own` took apart; every rank calls it."""
        count = self._count(name)
        if count == 1:
            return own
        parts = [torch.empty_like(own) for _ in range(count)]
        dist.all_gather(parts, own.contiguous(), group=self._shares[name])  # pyright: ignore[reportUnknownMemberType]
        return torch.cat(parts)[: len(self.computed[name])]

    def gradients(self) -> dict[str, Tensor]:
        """The float32 gradient of each weight, whole; zeros if there was none."""
        return {name: self._gradient(name, parameter) for name, parameter in self.computed.items()}

    def _gradient(self, name: str, parameter: nn.Parameter) -> Tensor:
        if name in self._sums:
            return self._sums[name]
        if parameter.grad is None:
            # Gradients are added over ranks, of which another one may have some here.
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def take(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Gives the optimizer its rows of the gradients, and returns them."""
        for name, held in self.held.items():
            held.grad = self.own(name, gradients[name])
        return [held.grad for held in self.held.values() if held.grad is not None]

    @torch.no_grad()
    def publish(self) -> None:
        """Overwrites the weights that are computed with by what the optimizer made."""
        for name, parameter in self.computed.items():
            if self.held[name] is not parameter:
                parameter.copy_(self.whole(name, self.held[name].detach()))

    @torch.no_grad()
    def load(self, name: str, tensor: Tensor) -> None:
        """Takes over a weight, whole, in any type."""
        self.held[name].copy_(self.own(name, tensor))
        self.computed[name].copy_(tensor)

    def drop(self) -> None:
        """Forgets all gradients."""
        for name, parameter in self.computed.items():
            parameter.grad = None
            self.held[name].grad = None
        for total in self._sums.values():
            total.zero_()

    @property
    def accumulated(self) -> list[Tensor]:
        """What gradients occupy."""
        own = [parameter.grad for parameter in self.computed.values() if parameter.grad is not None]
        return [*own, *self._sums.values()]

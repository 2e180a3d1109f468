"""A mixture of experts in the place of an MLP, on any device: tokens travel to the ranks that hold their experts, and back.

tokens ─▶ router ─▶ sorted by expert ─▶ all-to-all ─▶ this rank's experts ─▶ all-to-all ─▶ Σ weight · output
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from rlinf.engines.megatron.mapping import Experts


class Mixture(nn.Module):
    """Each token through k of all experts; a rank of the group holds some, and no token is ever dropped.

    p = softmax(router · x),   y = Σ_{e ∈ top k of p} w_e · down_e (silu(gate_e x) ∘ up_e x),   w = p, or p / Σ p of the k

    Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer" (2017), arXiv:1701.06538.
    Experts over ranks: Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding" (2020),
    arXiv:2006.16668. Everything is rounded where transformers does it, so that its generators choose the same experts.

    Args:
        config: Megatron's.
        experts: of the layer.
        group: the ranks over which they are divided, in order.
    """

    def __init__(self, config: Any, experts: Experts, group: Any) -> None:
        super().__init__()
        self._experts, self._group = experts, group
        self._ranks = dist.get_world_size(group)
        held = experts.count // self._ranks
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        sizes = {
            "router": (experts.count, config.hidden_size),
            "gate_up": (held, 2 * experts.ffn, config.hidden_size),
            "down": (held, config.hidden_size, experts.ffn),
        }
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(size, dtype=config.params_dtype, device=device)))

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """`[S, B, W]` of the same, and no bias; every rank of the group calls it, with tokens of its own.

        Args:
            hidden: of this rank's tokens, padding included.
            padding_mask: not used.
        """
        rows = hidden.flatten(0, -2)
        weight, chosen = self._routed(rows)
        wanted = chosen.flatten()
        order = wanted.argsort(stable=True)
        counts = wanted.bincount(minlength=self._experts.count)
        # In `wanted`, each row stands once for each of its experts.
        found = self._sent(rows[order // self._experts.chosen], counts)
        each = found[order.argsort()].view(*chosen.shape, -1)
        return (each * weight[..., None]).sum(1).view_as(hidden), None

    def _routed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The k experts of each of `[n, W]`, and the weight of each: two of `[n, k]`."""
        scores = functional.linear(rows, cast("Tensor", self.router))
        weight, chosen = scores.softmax(-1, dtype=torch.float32).topk(self._experts.chosen, dim=-1)
        if self._experts.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        return weight.to(scores.dtype), chosen

    def _sent(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What experts make of rows, of which each expert in turn gets so many, wherever it is."""
        if self._ranks == 1:
            return self._computed(rows, counts)
        table = [torch.empty_like(counts) for _ in range(self._ranks)]
        dist.all_gather(table, counts, group=self._group)  # pyright: ignore[reportUnknownMemberType]
        # [ranks that send, this rank's experts]
        mine = torch.stack(table).chunk(self._ranks, 1)[dist.get_rank(self._group)]
        send, receive = _numbers(counts.view(self._ranks, -1).sum(1)), _numbers(mine.sum(1))
        received = cast("Tensor", _Exchange.apply(rows, send, receive, self._group))
        experts = torch.arange(mine.shape[1], device=rows.device).repeat(self._ranks)
        order = experts.repeat_interleave(mine.flatten()).argsort(stable=True)
        computed = self._computed(received[order], mine.sum(0))
        return cast("Tensor", _Exchange.apply(computed[order.argsort()], receive, send, self._group))

    def _computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What this rank's experts make of rows that are sorted by them."""
        found: list[Tensor] = []
        held = cast("Tensor", self.gate_up).unbind(), cast("Tensor", self.down).unbind()
        for own, gate_up, down in zip(torch.split(rows, _numbers(counts)), *held, strict=True):
            gate, up = functional.linear(own, gate_up).chunk(2, -1)
            found.append(functional.linear(functional.silu(gate) * up, down))
        return torch.cat(found)


def _numbers(tensor: Tensor) -> list[int]:
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


class _Exchange(torch.autograd.Function):
    """Consecutive rows to each rank of a group, and such from each; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        """`[Σ receive, W]` of `[Σ send, W]`."""
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchanged(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """That of the rows that were sent."""
        return _exchanged(gradients[0], ctx.receive, ctx.send, ctx.group), None, None, None


def _exchanged(rows: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
    found = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), receive, send, group=group)  # pyright: ignore[reportUnknownMemberType]
    return found

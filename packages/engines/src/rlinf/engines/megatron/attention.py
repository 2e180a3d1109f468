"""What is inside Megatron's layers here: attention and normalisation of torch, on any device."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


class TorchAttention(nn.Module):
    """Attention by `scaled_dot_product_attention`, with keys and values gathered over the ranks that share a row's columns.

    Dubey et al., "The Llama 3 Herd of Models" (2024), §3.3.2, arXiv:2407.21783, for context parallelism by gathering.

    Args:
        config: Megatron's, of the layer.
        pg_collection: the groups of ranks.
        layer_number: counted from 1.
        attn_mask_type: always causal here.
        attention_type: always "self" here.
        cp_comm_type: not used.
        softmax_scale: what queries times keys are multiplied by; None for 1 / √width.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        cp_comm_type: str | None = None,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__()
        self._scale, self._group = softmax_scale, pg_collection.cp
        self._ranks = int(config.context_parallel_size)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """`[S, B, N · W]` of queries `[S, B, N, W]` and keys and values `[S, B, G, W]`.

        Args:
            query: of this rank's columns and heads.
            key: of this rank's columns and groups.
            value: likewise.
            attention_mask: `[B, 1, S, all columns]`, what a column may see; None for everything up to itself.
            attn_mask_type: not used.
            attention_bias: not used.
            packed_seq_params: not used.
        """
        if self._ranks > 1:
            key, value = gather_columns(torch.stack([key, value]), self._group, dim=1)
        queries, keys, values = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=attention_mask,
            # torch refuses a mask beside `is_causal`.
            is_causal=attention_mask is None,
            scale=self._scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)


class TorchNorm(nn.Module):
    """RMSNorm in float32. Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019), arXiv:1910.07467.

    Args:
        config: Megatron's.
        hidden_size: what is normalised.
        eps: added to the mean square.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[…, hidden_size]` of the same."""
        precise = x.float()
        precise = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + self._eps)
        # Rounded before it is multiplied, as in transformers.
        return self.weight * precise.to(x.dtype)


def gather_columns(tensor: Tensor, group: Any, dim: int) -> Tensor:
    """The tensor of all ranks of a group, side by side along `dim`; its gradient is added over ranks."""
    return cast("Tensor", _Columns.apply(tensor, group, dim, True))


def take_columns(tensor: Tensor, group: Any, dim: int) -> Tensor:
    """As `gather_columns`, but every rank computes the same from it, so that each keeps its part of the gradient."""
    return cast("Tensor", _Columns.apply(tensor, group, dim, False))


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any, dim: int, added: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.added = group, dim, added
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)  # pyright: ignore[reportUnknownMemberType]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0]
        if ctx.added:
            gradient = gradient.contiguous().clone()
            dist.all_reduce(gradient, group=ctx.group)  # pyright: ignore[reportUnknownMemberType]
        return gradient.chunk(dist.get_world_size(ctx.group), ctx.dim)[dist.get_rank(ctx.group)], None, None, None

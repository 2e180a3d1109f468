"""Layers of N networks that run as one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class BatchedLinear(nn.Module):
    """N linear layers side by side: yₙ = xₙ Wₙ + bₙ.

    Weights and biases start as those of `nn.Linear`, each network's on its own.

    Args:
        count: N.
        size_in: I.
        size_out: O.
    """

    def __init__(self, count: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(count, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, N, O]` of `[B, N, I]`."""
        # One product for all N networks: a loop would launch N small ones.
        return torch.einsum("bni,nio->bno", x, self.weight) + self.bias


class BatchedLayerNorm(nn.Module):
    """N layer normalisations side by side, each with a scale and a shift of its own.

    Ba et al., "Layer Normalization" (2016), arXiv:1607.06450.

    Args:
        count: N.
        size: D.
    """

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, size))
        self.bias = nn.Parameter(torch.zeros(count, size))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, `[B, N, D]`."""
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias

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
        """`[N, B, O]` of `[N, B, I]`."""
        # One product for all N networks: a loop would launch N small ones; `einsum` takes longer to find this out than to compute.
        return torch.baddbmm(self.bias[:, None], x, self.weight)


class SeededDropout(nn.Module):
    """x ↦ x m / (1 − p), m ~ Bernoulli(1 − p) for each number, where there is a generator to draw m; x otherwise.

    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014), JMLR 15. torch's own draws from
    its global generator, which no checkpoint of ours has.

    Args:
        share: p in [0, 1).
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The same shape."""
        if generator is None or self.share == 0.0:
            return x
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= self.share
        return x * kept / (1.0 - self.share)


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
        """The same shape, `[N, B, D]`."""
        return torch.addcmul(self.bias[:, None], nn.functional.layer_norm(x, x.shape[-1:]), self.weight[:, None])

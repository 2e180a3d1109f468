"""Layers of which each robot has its own weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class EmbodimentLinear(nn.Module):
    """y = x W_e + b_e, for the robot e; all robots' weights lie in one tensor.

    Args:
        embodiments: how many robots.
        size_in: of x.
        size_out: of y.
    """

    def __init__(self, embodiments: int, size_in: int, size_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(embodiments, size_in, size_out))
        self.bias = nn.Parameter(torch.zeros(embodiments, size_out))
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(size_in))

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        """`[*, size_out]` of `[*, size_in]`."""
        # Published weights lie as [robot, in, out]; F.linear wants [out, in].
        return F.linear(x, self.weight[embodiment].T, self.bias[embodiment])


class EmbodimentMLP(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, embodiments: int, size_in: int, hidden: int, size_out: int) -> None:
        super().__init__()
        self.first = EmbodimentLinear(embodiments, size_in, hidden)
        self.second = EmbodimentLinear(embodiments, hidden, size_out)

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        """`[*, size_out]` of `[*, size_in]`."""
        return self.second(F.relu(self.first(x, embodiment)), embodiment)


class ActionEncoder(nn.Module):
    """Tokens of noisy actions: W₃ swish(W₂ [W₁ a, sinusoids of the time]).

    Args:
        embodiments: how many robots.
        action_size: D.
        width: of a token; even.
    """

    def __init__(self, embodiments: int, action_size: int, width: int) -> None:
        super().__init__()
        self.first = EmbodimentLinear(embodiments, action_size, width)
        self.second = EmbodimentLinear(embodiments, 2 * width, width)
        self.third = EmbodimentLinear(embodiments, width, width)
        self.width = width

    def forward(self, actions: Tensor, bucket: Tensor, embodiment: int) -> Tensor:
        """`[B, H, width]` of actions `[B, H, D]` at times `[B]`."""
        tokens = self.first(actions, embodiment)
        time = sinusoids(bucket, self.width).to(tokens.dtype)[:, None].expand_as(tokens)
        return self.third(F.silu(self.second(torch.cat([tokens, time], -1), embodiment)), embodiment)


def sinusoids(bucket: Tensor, width: int, *, last: bool = False, cosine_first: bool = False) -> Tensor:
    """sin(t ωᵢ) and cos(t ωᵢ), ωᵢ = 10000^(−i / n), i = 0 … width / 2 − 1.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.5, arXiv:1706.03762.

    Args:
        bucket: `[B]` int, t.
        width: of the result.
        last: n is width / 2 − 1, so that the last ω is 1 / 10000; else n is width / 2.
        cosine_first: which half comes first.

    Returns:
        `[B, width]` float32.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32, device=bucket.device) * (-math.log(10_000.0) / (half - last)))
    angle = bucket.float()[:, None] * rates
    parts = [angle.cos(), angle.sin()] if cosine_first else [angle.sin(), angle.cos()]
    return torch.cat(parts, -1)

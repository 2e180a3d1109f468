"""The RL token: what a vision-language-action policy makes of images and prompt, in a few numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf.models.precision import at_least_float32

_POSITION = 32
"""Numbers that tell positions apart."""


class RLToken(nn.Module):
    """An encoder of features `[B, P, W]` into a token `[B, Z]`, and a decoder that makes the features of it again.

    z = norm(g(Σₚ softmax(qᵢ · hₚ / √W) hₚ)),   ĥₚ = d(z, p)

    for a few queries qᵢ, h the features of each position, normalised. Xu et al., "RL Token: Bootstrapping Online RL with
    Vision-Language-Action Models" (2026), arXiv:2604.23073, where encoder and decoder are transformers and the decoder is told
    the features before those that it makes. Here it is told the token and the position alone, so that all is in the token.

    Args:
        width: W.
        size: Z.
        queries: how many look through the positions.
        hidden: units of the hidden layers.
    """

    def __init__(self, width: int, size: int, queries: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, width))
        self.encoder = nn.Sequential(nn.Linear(queries * width, hidden), nn.GELU(), nn.Linear(hidden, size))
        self.decoder = nn.Sequential(nn.Linear(size + _POSITION, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, features: Tensor, valid: Tensor) -> Tensor:
        """The token `[B, Z]`, of mean 0 and variance 1, of features `[B, P, W]` and which of them there are, `[B, P]` bool."""
        seen = _normalized(features)
        score = (seen @ self.query.t()).mT / math.sqrt(seen.shape[-1])
        looked = score.masked_fill(~valid[:, None], -math.inf).softmax(-1) @ seen
        token: Tensor = self.encoder(looked.flatten(1))
        return F.layer_norm(token, token.shape[-1:])

    def reconstruction(self, features: Tensor, valid: Tensor) -> Tensor:
        """`[B]`, the mean square of what the token loses of normalised features `[B, P, W]`, over what is valid; differentiable."""
        seen = _normalized(features)
        token = self(features, valid)[:, None].expand(-1, seen.shape[1], -1)
        position = _positions(seen.shape[1], seen).expand(len(seen), -1, -1)
        lost = (self.decoder(torch.cat([token, position], -1)) - seen).square().mean(-1)
        return torch.where(valid, lost, 0.0).sum(1) / valid.sum(1)


def _normalized(features: Tensor) -> Tensor:
    """Float32 at least, without a graph: single features of large models are hundreds of times the others."""
    seen = at_least_float32(features.detach())
    return F.layer_norm(seen, seen.shape[-1:])


def _positions(count: int, like: Tensor) -> Tensor:
    """`[P, 32]`, sine and cosine of the number of each position at frequencies from 1 to 1/1000.

    Vaswani et al., "Attention Is All You Need" (2017), sec. 3.5, arXiv:1706.03762, with 1000 in place of 10000.
    """
    frequency = 1000.0 ** -torch.linspace(0.0, 1.0, _POSITION // 2, dtype=like.dtype, device=like.device)
    angle = torch.arange(count, dtype=like.dtype, device=like.device)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)

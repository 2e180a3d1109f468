"""FiLM: the instruction scales and shifts what the vision transformers see.

    x ← x + attention(norm(x));   x ← x (1 + γ) + β;   x ← x + mlp(norm(x)),   γ = W_γ ē + b_γ,  β = W_β ē + b_β

with the mean embedding ē of the language, one γ and one β for each channel, the same for all patches. Perez et al., "FiLM: Visual
Reasoning with a General Conditioning Layer" (2018), arXiv:1709.07871; in OpenVLA-OFT: Kim, Finn, Liang (2025), section IV.C,
arXiv:2502.19645.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.models.openvla.architecture import PrismaticConfig

_CHANNELS = 3


class FilmLayer(nn.Module):
    """γ and β for one block; both are 0 at the start, so that a model that was trained without FiLM is unchanged."""

    def __init__(self, language: int, vision: int) -> None:
        super().__init__()
        self.scale = nn.Linear(language, vision)
        self.shift = nn.Linear(language, vision)
        for linear in (self.scale, self.shift):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        """`[B, N, D]` of `[B, N, D]` and `[B, L]`."""
        return x * (1.0 + self.scale(language)[:, None]) + self.shift(language)[:, None]


class Film(nn.Module):
    """A layer for each block of both vision transformers.

    Args:
        config: the sizes.
    """

    def __init__(self, config: PrismaticConfig) -> None:
        super().__init__()
        language = config.text.hidden_size
        first, second = (
            nn.ModuleList([FilmLayer(language, vision.width) for _ in range(vision.depth - 1)]) for vision in config.vision
        )
        self.featurizer, self.fused_featurizer = first, second

    def forward(self, backbone: nn.Module, pixels: Tensor, language: Tensor) -> Tensor:
        """The features that `backbone` would give, modulated.

        Args:
            backbone: the `VisionBackbone`.
            pixels: `[B, 6, h, w]`.
            language: `[B, L]`, ē.

        Returns:
            `[B, P, D₁ + D₂]`.
        """
        towers: Any = backbone
        first = _modulated(towers.featurizer, self.featurizer, pixels[:, :_CHANNELS], language)
        second = _modulated(towers.fused_featurizer, self.fused_featurizer, pixels[:, _CHANNELS:], language)
        return torch.cat([first, second], dim=-1)


def _modulated(tower: Any, layers: Iterable[nn.Module], pixels: Tensor, language: Tensor) -> Tensor:
    x: Tensor = tower.patch_embed(pixels) + tower.pos_embed
    if tower.prefix:
        extra = torch.cat([tower.cls_token, tower.reg_token], dim=1).expand(len(x), -1, -1)
        x = torch.cat([extra, x], dim=1)
    # A block's own forward leaves no room between its two branches.
    for block, film in zip(tower.blocks, layers, strict=True):
        x = x + block.ls1(block.attn(block.norm1(x)))
        x = film(x, language)
        x = x + block.ls2(block.mlp(block.norm2(x)))
    return x[:, tower.prefix :]

"""A vision transformer under the names of timm, up to the block whose output OpenVLA uses, and the pictures that it sees."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.observations.images import fit_images
from rlinf.models.openvla.architecture import VisionConfig

# timm's, not PyTorch's 1e-5.
_EPS = 1e-6
_LAYER_SCALE = 1e-5


class LayerScale(nn.Module):
    """A learned factor for each channel; published checkpoints of OpenVLA call it `scale_factor`, timm `gamma`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), _LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        """`[*, D]` to `[*, D]`."""
        return x * self.scale_factor


class Attention(nn.Module):
    """Every token sees every token; query, key and value come from one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, N, D]` to `[B, N, D]`."""
        rows, tokens, width = x.shape
        qkv = cast("Tensor", self.qkv(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).reshape(rows, tokens, width))


class FeedForward(nn.Module):
    """Linear, GELU (exact), linear."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[*, D]` to `[*, D]`."""
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """x + s₁ · attention(norm(x)), then x + s₂ · mlp(norm(x))."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attn = Attention(width, config.heads)
        self.ls1 = LayerScale(width) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = FeedForward(width, config.mlp_width)
        self.ls2 = LayerScale(width) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`[B, N, D]` to `[B, N, D]`."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Cuts a picture into squares and maps each to a vector."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.width, kernel_size=config.patch_size, stride=config.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """`[B, 3, H, W]` to `[B, P, D]`."""
        return cast("Tensor", self.proj(pixels)).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Patch features of the last block but one, without a final norm; class and register tokens are dropped.

    What lies behind them in the published network (last block, norm, pooling) is not built: it would never get a gradient.
    Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2021), arXiv:2010.11929;
    registers: Darcet et al., "Vision Transformers Need Registers" (2024), arXiv:2309.16588.

    Args:
        config: the sizes.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = nn.Parameter(torch.zeros(1, config.patches, config.width))
        self.prefix = 0
        if config.registers is not None:
            self.prefix = 1 + config.registers
            self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
            self.reg_token = nn.Parameter(torch.zeros(1, config.registers, config.width))
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.depth - 1)])

    def forward(self, pixels: Tensor) -> Tensor:
        """`[B, 3, H, W]`, normalised, to `[B, P, D]`."""
        # Class and register tokens get no position, as timm's `no_embed_class`.
        x = cast("Tensor", self.patch_embed(pixels)) + self.pos_embed
        if self.prefix:
            extra = torch.cat([self.cls_token, self.reg_token], dim=1).expand(len(x), -1, -1)
            x = torch.cat([extra, x], dim=1)
        for block in self.blocks:
            x = block(x)
        return x[:, self.prefix :]

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draws all weights anew: N(0, initializer_range²), biases 0."""
        spread = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, spread, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.fill_(spread if name.endswith("scale_factor") else 1.0)


def fit_pictures(images: Any, size: int, *, crop: bool) -> Tensor:
    """`[*, size, size, 3]` uint8 of `[*, H, W, 3]`; `crop`: of the central 90 % of the area, for models that saw random crops."""
    if crop:
        return fit_images(images, size, filter="lanczos", rounding="once", crop_scale=0.9, crop_of="area")
    return fit_images(images, size, filter="bicubic")

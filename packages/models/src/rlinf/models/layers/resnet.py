"""A small residual network for images, and how its feature maps become vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from rlinf.core.errors import ConfigError
from rlinf.models.layers.choices import Pooling

_GROUPS = 4


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """One basic block in each stage."""

    widths: tuple[int, ...]
    """Channels of each stage."""
    strides: tuple[int, ...]
    """Of the first convolution of each stage."""
    large_stem: bool
    """Whether images are shrunk by 4 at once (7 × 7 convolution and maximum), or by 2 (3 × 3 convolution)."""


SHAPES: dict[str, ResNetShape] = {
    "base": ResNetShape((64, 128, 256, 512), (1, 2, 2, 2), large_stem=True),
    "tiny": ResNetShape((8, 16, 16, 32), (1, 2, 2, 1), large_stem=False),
}


class BasicBlock(nn.Module):
    """y = relu(f(x) + x), f two 3 × 3 convolutions; x is projected where the shapes differ.

    He et al., "Deep Residual Learning for Image Recognition" (2015), fig. 5 left, arXiv:1512.03385, with group normalisation in
    place of batch normalisation: Wu and He, "Group Normalization" (2018), arXiv:1803.08494. A row never depends on its batch.

    Args:
        size_in: channels of x.
        size_out: channels of y.
        stride: by how much y is smaller.
    """

    def __init__(self, size_in: int, size_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(size_in, size_out, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, size_out)
        self.conv2 = nn.Conv2d(size_out, size_out, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, size_out)
        self.stride = stride
        self.project: nn.Module = nn.Identity()
        if stride != 1 or size_in != size_out:
            self.project = nn.Sequential(nn.Conv2d(size_in, size_out, 1, bias=False), nn.GroupNorm(_GROUPS, size_out))

    def forward(self, x: Tensor) -> Tensor:
        """`[n, C′, H′, W′]` of `[n, C, H, W]`."""
        y = torch.relu(self.norm1(self.conv1(x)))
        # Every place that a stride of the projection's own would take (pools of one place). oneDNN's gradient of that writes past
        # its memory where there are fewer channels than a register has room for (uxlfoundation/oneDNN#6035): processes die of it.
        taken = x if self.stride == 1 else max_pool2d(x, 1, self.stride)
        return torch.relu(self.norm2(self.conv2(y)) + self.project(taken))


class ResNetEncoder(nn.Module):
    """Feature maps of images: a stem, and four stages of one block each.

    As in Luo et al., "SERL: A Software Suite for Sample-Efficient Robotic Reinforcement Learning" (2024), sec. IV,
    arXiv:2401.16013, with fresh weights.

    Args:
        shape: channels and strides.
    """

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        first = shape.widths[0]
        kernel = 7 if shape.large_stem else 3
        stem: list[nn.Module] = [nn.Conv2d(3, first, kernel, 2, kernel // 2, bias=False), nn.GroupNorm(_GROUPS, first), nn.ReLU()]
        if shape.large_stem:
            stem.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*stem)
        sizes_in = (first, *shape.widths[:-1])
        blocks = [BasicBlock(*sizes) for sizes in zip(sizes_in, shape.widths, shape.strides, strict=True)]
        self.stages = nn.Sequential(*blocks)
        self.channels = shape.widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # As torchvision begins its residual networks.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """`[n, C, h, w]`, of images `[n, H, W, 3]` uint8."""
        scaled = images.movedim(-1, -3).to(self.dtype) / 127.5 - 1.0
        return self.stages(self.stem(scaled))

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights."""
        return cast("nn.Conv2d", self.stem[0]).weight.dtype

    @torch.no_grad()
    def map_size(self, height: int, width: int) -> tuple[int, int]:
        """The size h, w of the maps of images of that size in pixels."""
        device = cast("nn.Conv2d", self.stem[0]).weight.device
        # By a pass, so that strides and paddings are said in one place.
        maps = self(torch.zeros(1, height, width, 3, dtype=torch.uint8, device=device))
        return maps.shape[-2], maps.shape[-1]


class SpatialEmbeddings(nn.Module):
    """z_cf = Σ_hw x_chw e_chwf: each channel is weighted by learned maps.

    As in Luo et al., "SERL" (2024), arXiv:2401.16013.

    Args:
        channels: C.
        size: h and w.
        maps: F, of each channel.
    """

    def __init__(self, channels: int, size: tuple[int, int], maps: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, *size, maps) / (channels * size[0] * size[1]) ** 0.5)
        self.width = channels * maps

    def forward(self, x: Tensor) -> Tensor:
        """`[n, C · F]` of `[n, C, h, w]`."""
        return torch.einsum("nchw,chwf->ncf", x, self.weight).flatten(1)


class SpatialSoftmax(nn.Module):
    """The expected place of each channel, in ±1 from corner to corner.

    p_c = softmax over places of x_c / τ,   z_c = (Σ p_c · column, Σ p_c · row)

    Finn et al., "Deep Spatial Autoencoders for Visuomotor Learning" (2016), sec. V, arXiv:1509.06113, with a learned τ > 0.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.width = 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """`[n, 2 C]` of `[n, C, h, w]`: columns, then rows."""
        height, width = x.shape[-2:]
        share = (x.flatten(2) * (-self.log_temperature).exp()).softmax(-1).view(x.shape)
        columns, rows = (torch.linspace(-1.0, 1.0, size, dtype=x.dtype, device=x.device) for size in (width, height))
        return torch.cat([(share.sum(2) * columns).sum(-1), (share.sum(3) * rows).sum(-1)], -1)


class MeanPool(nn.Module):
    """The mean of each channel over all places.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = channels

    def forward(self, x: Tensor) -> Tensor:
        """`[n, C]` of `[n, C, h, w]`."""
        return x.mean((-2, -1))


def make_pooling(pooling: Pooling, channels: int, size: tuple[int, int]) -> SpatialEmbeddings | SpatialSoftmax | MeanPool:
    """What makes vectors of feature maps.

    Args:
        pooling: which.
        channels: C.
        size: h and w.

    Raises:
        ConfigError: the maps are a single place, which has no expected coordinates.
    """
    if pooling == "spatial_softmax":
        if size == (1, 1):
            remedy = "Use larger images, preset: tiny, or pooling: spatial_embeddings."
            raise ConfigError("pooling", "spatial_softmax needs feature maps of more than one place, found 1 × 1", remedy)
        return SpatialSoftmax(channels)
    return SpatialEmbeddings(channels, size) if pooling == "spatial_embeddings" else MeanPool(channels)

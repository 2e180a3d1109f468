"""What the steering policy sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError

IMAGES, STATES = "main_images", "states"
_CHANNELS = (32, 32, 32, 32)


class SmallEncoder(nn.Module):
    """Features of the main camera by four strided convolutions, and of the states by one layer, side by side.

    Args:
        spec: what there is to see: `main_images`, `states`, or both.
        image_size: pixels, each way, of the images that come in.
        features: units for each of the two.
    """

    def __init__(self, spec: EnvSpec, image_size: int, features: int) -> None:
        super().__init__()
        self.keys = tuple(key for key in (IMAGES, STATES) if key in spec.observation)
        if not self.keys:
            found = f"expected '{IMAGES}' or '{STATES}', found {sorted(spec.observation)}"
            raise ConfigError("dsrl", found, "Choose an environment with one of them.")
        self.width = features * len(self.keys)
        parts: dict[str, nn.Module] = {}
        if IMAGES in self.keys:
            parts[IMAGES] = _convolutions(image_size, features)
        if STATES in self.keys:
            parts[STATES] = nn.Sequential(nn.Linear(spec.observation[STATES].shape[0], features), nn.LayerNorm(features), nn.Tanh())
        self.parts = nn.ModuleDict(parts)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """`[B, width]` of images `[B, H, W, 3]` uint8 and states `[B, S]`."""
        found: list[Tensor] = []
        for key in self.keys:
            leaf = seen[key]
            part = cast("nn.Sequential", self.parts[key])
            dtype = cast("nn.Conv2d | nn.Linear", part[0]).weight.dtype
            x = leaf.movedim(-1, 1).to(dtype) / 127.5 - 1.0 if key == IMAGES else leaf.to(dtype)
            found.append(cast("Tensor", part(x)))
        return torch.cat(found, -1)


def _convolutions(image_size: int, features: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    size, channels = image_size, 3
    for out in _CHANNELS:
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.ReLU()]
        # What a kernel of 3 with stride 2 and padding 1 leaves, rounded up.
        size, channels = (size + 1) // 2, out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, features), nn.LayerNorm(features), nn.Tanh())

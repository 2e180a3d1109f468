"""The noise that a flow starts from, and learned exploration noise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from rlinf.models.flow.draws import draw_noise
from rlinf.models.flow.sampling import FlowSampling


def initial_noise(
    shape: tuple[int, int, int],
    sampling: FlowSampling,
    *,
    train: bool,
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """What a chain starts from, `[B, H, D]`: a sample of N(0, I), or its centre in an evaluation that draws nothing.

    Args:
        shape: B, H, D.
        sampling: says what an evaluation starts from.
        train: whether the mode is "train".
        generator: the source of randomness; numbers are drawn on its device, so that they don't depend on the policy's.
        device: where the noise goes.
        dtype: of the policy; the noise is float32, or finer if that is.
    """
    dtype = torch.promote_types(dtype, torch.float32)
    if not train and sampling.eval_noise == "zero":
        return torch.zeros(shape, device=device, dtype=dtype)
    return draw_noise(shape, torch.empty(0, device=device, dtype=dtype), generator)


class ExploreNoiseNet(nn.Module):
    """The standard deviation of a denoising step, from what the action expert thinks at it.

    log σ² = lo + (hi − lo) (tanh(MLP(h)) + 1) / 2

    Zhang et al., "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning" (2025), arXiv:2505.22094.

    Args:
        width: of h.
        size: D.
        bounds: the least and the greatest σ.
        hidden: units of the hidden layers.
    """

    def __init__(self, width: int, size: int, bounds: tuple[float, float], hidden: tuple[int, ...] = (128, 64)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((width, *hidden, size)):
            layers += [nn.Linear(size_in, size_out), nn.Tanh()]
        self.net = nn.Sequential(*layers)
        # The bounds are those of σ, and the network says log σ².
        self.low, self.high = (2.0 * math.log(bound) for bound in bounds)

    def forward(self, hidden: Tensor) -> Tensor:
        """σ `[B, H, D]`, float32 at least, of hidden states `[B, H, W]`."""
        own = cast("nn.Linear", self.net[0]).weight.dtype
        unit = 0.5 * (cast("Tensor", self.net(hidden.to(own))) + 1.0)
        unit = unit.to(torch.promote_types(unit.dtype, torch.float32))
        return (0.5 * (self.low + (self.high - self.low) * unit)).exp()


def noise_net(sampling: FlowSampling, width: int, size: int) -> ExploreNoiseNet | None:
    """The network of flow_noise, of hidden states `[B, H, width]`; None where σ is not learned."""
    return ExploreNoiseNet(width, size, sampling.noise_logvar_range) if sampling.noise_method == "flow_noise" else None

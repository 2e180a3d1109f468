"""The network of the flow policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from rlinf.models.layers.activations import make_activation
from rlinf.models.layers.choices import Activation
from rlinf.models.precision import at_least_float32

_FREQUENCIES = 8
_PERIODS = (0.1, 4.0)


class VelocityNet(nn.Module):
    """v(x, τ, s): a multi-layer perceptron of the whole chunk, its time and the state.

    Args:
        states: S, the size of a state.
        horizon: H.
        size: D, of one control step.
        hidden: units of the hidden layers.
        token_width: W, units for each control step in the last one.
        activation: what follows each of them.
    """

    def __init__(
        self, states: int, horizon: int, size: int, hidden: Sequence[int], token_width: int, activation: Activation
    ) -> None:
        super().__init__()
        self.tokens = (horizon, token_width)
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((states + horizon * size + 2 * _FREQUENCIES, *hidden, horizon * token_width)):
            layers += [nn.Linear(size_in, size_out), make_activation(activation)]
        self.trunk = nn.Sequential(*layers)
        self.out = nn.Linear(token_width, size)

    def forward(self, x: Tensor, time: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity at a point of the flow.

        Args:
            x: `[B, H, D]`.
            time: `[B]`, τ.
            states: `[B, S]`.

        Returns:
            v `[B, H, D]` and hidden states `[B, H, W]`, float32 at least, whatever the type of the weights.
        """
        # In the type of the time: frequencies that were rounded to bfloat16 with the weights would be others.
        periods = torch.logspace(
            math.log10(_PERIODS[0]), math.log10(_PERIODS[1]), _FREQUENCIES, dtype=time.dtype, device=time.device
        )
        angles = time[:, None] * (2.0 * math.pi / periods)
        features = torch.cat([states, x.flatten(1), angles.sin(), angles.cos()], -1).to(self.out.weight.dtype)
        hidden = cast("Tensor", self.trunk(features)).view(-1, *self.tokens)
        return at_least_float32(self.out(hidden)), at_least_float32(hidden)

"""The value head: V(s) from what a policy makes of s."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rlinf.models.layers.activations import make_activation
from rlinf.models.layers.choices import Activation

_LAST_STD = 0.02


class ValueHead(nn.Module):
    """V = MLP(h); one number for each row of features.

    The last layer starts near zero, so that a fresh critic neither praises nor blames. Everything is computed in the type of
    the head's own weights: a head in float32 on a bfloat16 model keeps its resolution. Hold it in an attribute `value_head` to
    give it the critic's learning rate.

    Args:
        width: W, of the features.
        hidden: units of the hidden layers; none makes it linear.
        activation: what follows each hidden layer.
        last_bias: whether the last layer has a bias.
    """

    def __init__(
        self, width: int, hidden: Sequence[int] = (512, 128), activation: Activation = "gelu", *, last_bias: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((width, *hidden)):
            layers += [nn.Linear(size_in, size_out), make_activation(activation, place="ValueHead(activation)")]
        self.last = nn.Linear((width, *hidden)[-1], 1, bias=last_bias)
        nn.init.normal_(self.last.weight, std=_LAST_STD)
        if last_bias:
            nn.init.zeros_(self.last.bias)
        self.hidden = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """`[*]`, float32 at least, of features `[*, W]`."""
        value = self.last(self.hidden(features.to(self.last.weight.dtype))).squeeze(-1)
        return value.to(torch.promote_types(value.dtype, torch.float32))

"""Q-functions: N critics as one module."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.heads.batch_renorm import BatchRenorm
from rlinf.models.heads.batched import BatchedLayerNorm, BatchedLinear, SeededDropout
from rlinf.models.layers.activations import make_activation
from rlinf.models.layers.choices import Activation


class MultiQHead(nn.Module):
    """Q₁ … Q_N (h, a): multi-layer perceptrons of the same size and different weights, run as one.

    Chen et al., "Randomized Ensembled Double Q-Learning" (2021), arXiv:2101.05982, for many critics; layer normalisation as in
    Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (2023), sec. 4.2, arXiv:2302.02948; dropout before it
    as in Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (2021), sec. 4, arXiv:2110.02034.

    Args:
        width: W, of the features.
        actions: of the flattened action: K · A.
        count: N.
        hidden: units of the hidden layers.
        activation: what follows each of them.
        layer_norm: whether each hidden layer is normalised before its activation.
        dropout: the share of hidden units that are dropped before that, in a pass that is given a generator.
    """

    def __init__(
        self,
        width: int,
        actions: int,
        count: int = 2,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sizes = _checked("MultiQHead", width, actions, count)
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((width + actions, *hidden)):
            layers.append(BatchedLinear(count, size_in, size_out))
            if dropout:
                layers.append(SeededDropout(dropout))
            if layer_norm:
                layers.append(BatchedLayerNorm(count, size_out))
            layers.append(make_activation(activation, place="MultiQHead(activation)"))
        layers.append(BatchedLinear(count, (width + actions, *hidden)[-1], 1))
        self.critic = nn.Sequential(*layers)

    def forward(self, features: Tensor, action: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """What each critic says.

        Args:
            features: `[B, W]`.
            action: `[B, K · A]`.
            generator: drops units; without it all are there.

        Returns:
            `[B, N]`.

        Raises:
            ShapeError: a shape disagrees; the message names the argument.
        """
        # Expanded, not repeated: all networks read the same memory.
        x = _joined("MultiQHead", self.sizes, features, action).expand(self.sizes[2], -1, -1)
        for layer in self.critic:
            x = layer(x, generator) if isinstance(layer, SeededDropout) else layer(x)
        return x.squeeze(-1).t()


class CrossQHead(nn.Module):
    """Q₁ … Q_N (h, a) with batch renormalisation before every layer, for learning without target networks.

    Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"
    (2024), sec. 3, arXiv:1902.05605. Give one pass both ends of the transitions, joined, with `training=True`; every other pass
    uses the running statistics and changes nothing, whatever mode the module is in.

    Args:
        width: W, of the features.
        actions: of the flattened action: K · A.
        count: N.
        hidden: units of the hidden layers; the paper's are 2048 wide.
        activation: what follows each of them.
        momentum: of the running statistics.
        warmup: passes of plain batch normalisation before renormalisation begins.
    """

    def __init__(
        self,
        width: int,
        actions: int,
        count: int = 2,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        *,
        momentum: float = 0.01,
        warmup: int = 100_000,
    ) -> None:
        super().__init__()
        self.sizes = _checked("CrossQHead", width, actions, count)
        sizes = (width + actions, *hidden, 1)
        # CrossQ lets both bounds jump at the end of the warm-up, where Ioffe lets them grow.
        ramp = (warmup, warmup)
        norms = [BatchRenorm((count, size), momentum=momentum, r_ramp=ramp, d_ramp=ramp) for size in sizes[:-1]]
        linears = [BatchedLinear(count, size_in, size_out) for size_in, size_out in pairwise(sizes)]
        self.critic = nn.ModuleDict({"norms": nn.ModuleList(norms), "linears": nn.ModuleList(linears)})
        self.activation = make_activation(activation, place="CrossQHead(activation)")

    def forward(self, features: Tensor, action: Tensor, *, training: bool = False) -> Tensor:
        """What each critic says.

        Args:
            features: `[B, W]`, or `[2 B, W]` of both ends of B transitions.
            action: `[B, K · A]`, or `[2 B, K · A]`.
            training: whether the batch's own statistics are used, and added to the running ones.

        Returns:
            `[B, N]`, or `[2 B, N]`.

        Raises:
            ShapeError: a shape disagrees; the message names the argument.
        """
        x = _joined("CrossQHead", self.sizes, features, action)[:, None].expand(-1, self.sizes[2], -1)
        norms, linears = (cast("nn.ModuleList", self.critic[name]) for name in ("norms", "linears"))
        for i, (norm, linear) in enumerate(zip(norms, linears, strict=True)):
            # The norms want rows first, as they average over all axes before (N, size), and the layers networks first.
            x = linear(norm(self.activation(x) if i else x, training=training).transpose(0, 1)).transpose(0, 1)
        return x.squeeze(-1)


def _checked(by: str, width: int, actions: int, count: int) -> tuple[int, int, int]:
    if min(width, actions, count) < 1:
        raise ConfigError(by, f"expected sizes of at least 1, found width {width}, actions {actions}, count {count}")
    return width, actions, count


def _joined(by: str, sizes: tuple[int, int, int], features: Tensor, action: Tensor) -> Tensor:
    """`[B, W + K · A]`: features and action."""
    width, actions, _ = sizes
    if features.dim() != 2 or features.shape[-1] != width:
        raise ShapeError(f"{by}(features)", f"expected [B, {width}], found {tuple(features.shape)}")
    if action.shape != (len(features), actions):
        raise ShapeError(f"{by}(action)", f"expected {(len(features), actions)}, found {tuple(action.shape)}")
    return torch.cat([features, action.to(features.dtype)], -1)

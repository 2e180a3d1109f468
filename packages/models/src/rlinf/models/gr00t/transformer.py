"""The diffusion transformer of GR00T, and the small transformer that prepares what it looks at.

Peebles and Xie, "Scalable Diffusion Models with Transformers" (2023), arXiv:2212.09748; NVIDIA, "GR00T N1: An Open Foundation Model
for Generalist Humanoid Robots" (2025), section 2.2, arXiv:2503.14734. Nothing drops out: reinforcement learning scores a decision
again, and must see the network that took it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from rlinf.models.gr00t.embodiment import sinusoids

KeysValues = tuple[Tensor, Tensor]
"""What is attended to, `[B, heads, S, head_width]` each."""

# As in the published model, whatever the width of the tokens.
_TIME_WIDTH = 256


class Attention(nn.Module):
    """Multi-head attention of one sequence to itself or to another.

    Args:
        width: of the queries and of the result.
        heads: how many.
        head_width: of each.
        context_width: of what is attended to; `width` if None.
    """

    def __init__(self, width: int, heads: int, head_width: int, context_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_width
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(context_width or width, inner)
        self.value = nn.Linear(context_width or width, inner)
        self.out = nn.Linear(inner, width)

    def keys_values(self, context: Tensor) -> KeysValues:
        """Of `[B, S, context_width]`."""
        return self._split(self.key(context)), self._split(self.value(context))

    def forward(self, x: Tensor, keys_values: KeysValues | None = None, mask: Tensor | None = None) -> Tensor:
        """`[B, N, width]` of `[B, N, width]`.

        Args:
            x: where the queries come from.
            keys_values: of what is attended to; of x if None.
            mask: `[B, S]` bool, False for what isn't there; everything is if None.
        """
        key, value = self.keys_values(x) if keys_values is None else keys_values
        seen = None if mask is None else mask[:, None, None]
        found = F.scaled_dot_product_attention(self._split(self.query(x)), key, value, attn_mask=seen)
        return self.out(found.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        return x.view(rows, length, self.heads, -1).transpose(1, 2)


class AdaptiveNorm(nn.Module):
    """LayerNorm(x) (1 + a) + b, with a and b from the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """`[B, N, width]` of `[B, N, width]` and the time's embedding `[B, width]`."""
        scale, shift = self.linear(F.silu(time))[:, None].chunk(2, -1)
        return self.norm(x) * (1.0 + scale) + shift


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what came in.

    Args:
        width: of the tokens.
        heads: of the attention.
        head_width: of each head.
        context_width: of what is attended to; None for self-attention.
        adaptive: whether the first normalisation depends on the time.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, context_width: int | None = None, *, adaptive: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = AdaptiveNorm(width) if adaptive else nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_width, context_width)
        # The published checkpoint has no weights for it in adaptive blocks.
        self.norm2 = nn.LayerNorm(width, elementwise_affine=not adaptive)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self, x: Tensor, time: Tensor | None = None, keys_values: KeysValues | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """`[B, N, width]` of `[B, N, width]`."""
        normed = self.norm1(x) if time is None else self.norm1(x, time)
        x = x + self.attention(normed, keys_values, mask)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class ContextTransformer(nn.Module):
    """Self-attention over the tokens of images and text."""

    def __init__(self, width: int, layers: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, head_width) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`[B, S, width]` of `[B, S, width]`; `mask` `[B, S]` is False for padding."""
        for block in self.blocks:
            x = block(x, mask=mask)
        return x


class DiffusionTransformer(nn.Module):
    """Blocks that look, in turn, at images and text, and at each other.

    Args:
        width: of the tokens.
        layers: how many blocks.
        heads: of each attention.
        head_width: of each head.
        context_width: of the tokens of images and text.
        out: of the result.
    """

    def __init__(self, width: int, layers: int, heads: int, head_width: int, context_width: int, out: int) -> None:
        super().__init__()
        self.time1 = nn.Linear(_TIME_WIDTH, width)
        self.time2 = nn.Linear(width, width)
        contexts = [None if index % 2 else context_width for index in range(layers)]
        self.blocks = nn.ModuleList(Block(width, heads, head_width, context, adaptive=True) for context in contexts)
        # 1e-6 here, PyTorch's 1e-5 in the blocks: both as published.
        self.out_norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.out_time = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, out)

    def keys_values(self, context: Tensor) -> list[KeysValues]:
        """Of images and text, for each block that looks at them; the same for all times, so it is asked for once."""
        return [cast("Block", block).attention.keys_values(context) for block in list(self.blocks)[::2]]

    def forward(self, x: Tensor, bucket: Tensor, keys_values: Sequence[KeysValues], mask: Tensor) -> Tensor:
        """`[B, N, out]`.

        Args:
            x: `[B, N, width]`, tokens of state, future and actions.
            bucket: `[B]` int, the time.
            keys_values: of `keys_values`.
            mask: `[B, S]` bool, False for padding in images and text.
        """
        # As diffusers' Timesteps with flip_sin_to_cos and a downscale_freq_shift of 1.
        encoded = sinusoids(bucket, _TIME_WIDTH, last=True, cosine_first=True).to(x.dtype)
        time = self.time2(F.silu(self.time1(encoded)))
        for index, block in enumerate(self.blocks):
            x = block(x, time) if index % 2 else block(x, time, keys_values[index // 2], mask)
        # Shift first here, scale first in AdaptiveNorm: so lie the published weights.
        shift, scale = self.out_time(F.silu(time))[:, None].chunk(2, -1)
        return self.out(self.out_norm(x) * (1.0 + scale) + shift)

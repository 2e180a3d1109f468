"""The action head of GR00T-N1.5: from the tokens of a vision-language model, a state and noisy actions to a velocity.

Once for a decision, then once for each denoising step:

    VL tokens ─▶ norm ─▶ self-attention ─▶ keys and values; state ─▶ state encoder
    noisy actions, time ─▶ action encoder; state, future tokens, actions ─▶ diffusion transformer ─▶ decoder ─▶ velocity
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlinf.models.gr00t.embodiment import ActionEncoder, EmbodimentMLP
from rlinf.models.gr00t.shapes import HeadShape
from rlinf.models.gr00t.transformer import ContextTransformer, DiffusionTransformer, KeysValues

_EMBEDDING_STD = 0.02
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """What does not change from one denoising step to the next."""

    context: Tensor
    """`[B, S, W]`, tokens of images and text."""
    mask: Tensor
    """`[B, S]` bool, False for padding."""
    state: Tensor
    """`[B, 1, width]`, the state's token."""
    keys_values: Sequence[KeysValues]
    """Of the context, for each block that looks at it."""


class ActionHead(nn.Module):
    """A flow over `[B, H, D]`, in the convention of GR00T: from noise at t = 0 to actions at t = 1.

    Args:
        shape: its sizes.
        context_width: of the tokens of images and text.
    """

    def __init__(self, shape: HeadShape, context_width: int) -> None:
        super().__init__()
        self.shape = shape
        robots, width = shape.embodiments, shape.width
        self.state_encoder = EmbodimentMLP(robots, shape.state_size, shape.hidden, width)
        self.action_encoder = ActionEncoder(robots, shape.action_size, width)
        self.action_decoder = EmbodimentMLP(robots, shape.hidden, shape.hidden, shape.action_size)
        self.future = nn.Parameter(torch.empty(shape.future_tokens, width))
        self.position = nn.Parameter(torch.empty(shape.positions, width))
        for embedding in (self.future, self.position):
            nn.init.normal_(embedding, std=_EMBEDDING_STD)
        self.context_norm = nn.LayerNorm(context_width)
        self.context = ContextTransformer(context_width, shape.context_layers, shape.context_heads, shape.context_head_width)
        self.transformer = DiffusionTransformer(width, shape.layers, shape.heads, shape.head_width, context_width, shape.hidden)

    def condition(self, tokens: Tensor, mask: Tensor, state: Tensor, embodiment: int) -> Conditioning:
        """Prepares a decision.

        Args:
            tokens: `[B, S, W]`, of the backbone.
            mask: `[B, S]` bool.
            state: `[B, state_size]`, normalised and padded.
            embodiment: the robot.
        """
        context = self.context(self.context_norm(tokens), mask)
        encoded = self.state_encoder(state.to(context.dtype)[:, None], embodiment)
        return Conditioning(context=context, mask=mask, state=encoded, keys_values=self.transformer.keys_values(context))

    def velocity(self, actions: Tensor, time: Tensor, given: Conditioning, embodiment: int) -> tuple[Tensor, Tensor]:
        """dx/dt of noisy actions, and what the decoder made it of.

        Args:
            actions: `[B, H, D]`.
            time: `[B]`, t in [0, 1].
            given: of `condition`.
            embodiment: the robot.

        Returns:
            `[B, H, D]` and `[B, H, hidden]`.
        """
        bucket = bucket_of(time, self.shape.buckets)
        steps = actions.shape[1]
        encoded = self.action_encoder(actions.to(given.state.dtype), bucket, embodiment) + self.position[:steps]
        future = self.future.expand(len(actions), -1, -1)
        tokens = torch.cat([given.state, future, encoded], 1)
        # The tokens of the actions come last.
        hidden = self.transformer(tokens, bucket, given.keys_values, given.mask)[:, -steps:]
        return self.action_decoder(hidden, embodiment), hidden


def bucket_of(time: Tensor, buckets: int) -> Tensor:
    """⌊n t⌋, `[B]` int; a time that rounding left a hair below a bucket belongs to it."""
    return (time.double() * buckets + _ROUNDING).floor().clamp(min=0.0).long()

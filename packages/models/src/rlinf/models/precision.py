"""Which types numbers have that a policy gives away, whatever the type of its weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

_ANGLES = "inv_freq"
"""How transformers calls the frequencies of a rotary embedding, at the end of the name of a buffer."""


def at_least_float32(x: Tensor) -> Tensor:
    """The same in float32 if its type is coarser: log-probabilities and chains of actions would lose their last digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """`module.to(dtype)`, but for the frequencies of rotary embeddings, which stay as exact as they are.

    Angles are position × frequency: of a frequency in bfloat16 the last of 500 tokens would be turned by up to a radian too much.
    """
    found = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    owners = [(owner, name, buffer) for _, owner in found for name, buffer in owner.named_buffers(recurse=False)]
    module.to(dtype)
    for owner, name, buffer in owners:
        if name.endswith(_ANGLES):
            setattr(owner, name, buffer)

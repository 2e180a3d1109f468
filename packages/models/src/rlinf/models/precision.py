"""Which types numbers have that a policy gives away, whatever the type of its weights."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """The same in float32 if its type is coarser: log-probabilities and chains of actions would lose their last digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

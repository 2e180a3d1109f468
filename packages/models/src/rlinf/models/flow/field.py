"""What a flow is, for everything that follows it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a state `[B, H, D]` and its time `[B]`: the velocity `[B, H, D]`, and hidden states `[B, H, W]`. What does not change from
one step to the next, such as the cache of a prefix, is the closure's own."""

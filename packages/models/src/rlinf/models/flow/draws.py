"""Random numbers that don't depend on where a policy's weights are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def draw_noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """N(0, I), float32 or finer.

    Args:
        shape: of the result.
        like: whose device and type the result has.
        generator: the source; numbers are drawn on its device and moved. torch's global one if None.
    """
    return draw(shape, torch.randn, like, generator)


def draw_index(rows: int, count: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """`[rows]` int64, each of 0 … count − 1 as likely as any other; see `draw_noise`."""
    device = like.device if generator is None else generator.device
    return torch.randint(count, (rows,), generator=generator, device=device).to(like.device)


def draw(shape: Sequence[int], source: Callable[..., Tensor], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """What a function such as `torch.rand` draws on the generator's device, moved to that of `like`."""
    device = like.device if generator is None else generator.device
    kind = torch.promote_types(like.dtype, torch.float32)
    return source(tuple(shape), generator=generator, device=device, dtype=kind).to(like.device)

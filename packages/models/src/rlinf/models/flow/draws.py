"""Random numbers that don't depend on where a policy's weights are, nor on who is decided for in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from rlinf.core.random import RowGenerators

Source: TypeAlias = torch.Generator | RowGenerators | None
"""Where random numbers come from: one generator, one for each run of rows, or torch's global one."""


def drawn(shape: Sequence[int], source: Source, draw: Callable[[tuple[int, ...], torch.Generator | None], Tensor]) -> Tensor:
    """`[B, *]` of random numbers; of several generators each draws its own rows, as if they were all there are."""
    if isinstance(source, RowGenerators):
        return torch.cat([draw((rows, *shape[1:]), generator) for rows, generator in source.parts])
    return draw(tuple(shape), source)


def draw_noise(shape: Sequence[int], like: Tensor, generator: Source = None) -> Tensor:
    """N(0, I), float32 or finer.

    Args:
        shape: of the result.
        like: whose device and type the result has.
        generator: the source; numbers are drawn on its device and moved. torch's global one if None.
    """
    return draw(shape, torch.randn, like, generator)


def draw_index(rows: int, count: int, like: Tensor, generator: Source = None) -> Tensor:
    """`[rows]` int64, each of 0 … count − 1 as likely as any other; see `draw_noise`."""
    device = like.device if generator is None else generator.device
    return drawn((rows,), generator, lambda shape, part: torch.randint(count, shape, generator=part, device=device)).to(like.device)


def draw(shape: Sequence[int], source: Callable[..., Tensor], like: Tensor, generator: Source) -> Tensor:
    """What a function such as `torch.rand` draws on the generator's device, moved to that of `like`."""
    device = like.device if generator is None else generator.device
    kind = torch.promote_types(like.dtype, torch.float32)
    return drawn(shape, generator, lambda part_shape, part: source(part_shape, generator=part, device=device, dtype=kind)).to(
        like.device
    )

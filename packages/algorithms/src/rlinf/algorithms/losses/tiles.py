"""A loss of many decisions, some rows at a time: less memory than all at once, and for a CPU's caches less time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlinf.algorithms.losses.aggregation import Aggregation
from rlinf.algorithms.losses.terms import Terms, metrics_of, summed, sums_of
from rlinf.algorithms.precision import precise
from rlinf.algorithms.rows import rows_at_once
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError


def in_tiles(
    terms: Callable[..., Terms], aggregation: Aggregation, *, mask: Tensor, **tensors: Tensor | None
) -> LossOutput[Tensor]:
    """`summed(terms(…), mask, aggregation)`, some rows after the other if there are many.

    A loss is a sum over rows, so its gradient is known as soon as the loss is: what operations keep for the way back is dropped
    after every tile, and only the gradients themselves are held. They can't be differentiated once more.

    Args:
        terms: called with `mask` and `tensors` by name; what it says of a row must depend on that row alone.
        aggregation: what the total sums and the weight counts.
        mask: `[B, T]` bool.
        tensors: `[B, …]`; None is passed on.
    """
    given = {"mask": mask, **tensors}
    rows = rows_at_once([x for x in given.values() if x is not None])
    if rows is None:
        return summed(terms(**given), mask, aggregation)
    run = _Run(terms, given, aggregation, rows)
    try:
        total = cast("Tensor", _Tiled.apply(run, *run.leaves.values())) if run.leaves else run.whole()[0]
    except ShapeError:
        return summed(terms(**given), mask, aggregation)  # raises it again, with the sizes that the caller knows
    return LossOutput(total=total, weight=run.weight, metrics=metrics_of(run.observed, run.explained, run.sums, run.by_row))


@dataclass(slots=True)
class _Run:
    """One loss, tile by tile, and what it adds up to."""

    terms: Callable[..., Terms]
    tensors: Mapping[str, Any]
    aggregation: Aggregation
    rows: int
    leaves: dict[str, Tensor] = field(init=False)
    weight: Any = 0.0
    sums: Any = 0.0
    observed: Collection[str] = ()
    explained: Collection[str] = ()
    by_row: Collection[str] = ()

    def __post_init__(self) -> None:
        grad = torch.is_grad_enabled()
        self.leaves = {name: x for name, x in self.tensors.items() if grad and x is not None and x.requires_grad}

    def whole(self) -> tuple[Tensor, list[Tensor | None]]:
        """The total, and its gradient with respect to each leaf; None where it does not depend on it."""
        total: Any = 0.0
        slopes: dict[str, Tensor] = {}
        for start in range(0, len(self.tensors["mask"]), self.rows):
            tile = slice(start, start + self.rows)
            rows: dict[str, Any] = {name: None if x is None else x.detach()[tile] for name, x in self.tensors.items()}
            leaves = {name: precise(rows[name]).requires_grad_() for name in self.leaves}
            part = self._summed({**rows, **leaves})
            total = total + part.detach()
            if not part.requires_grad:
                continue
            found = cast("Sequence[Tensor | None]", torch.autograd.grad(part, list(leaves.values()), allow_unused=True))
            for (name, leaf), slope in zip(leaves.items(), found, strict=True):
                if slope is not None:
                    if name not in slopes:
                        slopes[name] = torch.zeros(self.leaves[name].shape, dtype=leaf.dtype, device=leaf.device)
                    slopes[name][tile] = slope
        return total, [slopes.get(name) for name in self.leaves]

    def _summed(self, rows: Mapping[str, Any]) -> Tensor:
        """The total of a tile; all else is added to what there is."""
        with torch.set_grad_enabled(bool(self.leaves)):
            terms = self.terms(**rows)
            total, weight, sums = sums_of(terms, rows["mask"], self.aggregation)
        self.weight, self.sums = self.weight + weight, self.sums + sums
        self.observed, self.explained, self.by_row = list(terms.observed), list(terms.explained), list(terms.by_row)
        return total


class _Tiled(torch.autograd.Function):
    """The total, whose gradients are computed with it."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *leaves: Tensor) -> Tensor:
        total, ctx.slopes = run.whole()
        ctx.run = run
        ctx.save_for_backward(*leaves)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaves = ctx.saved_tensors
        slopes = ctx.run.whole()[1] if ctx.slopes is None else ctx.slopes  # a graph that was retained is computed again
        ctx.slopes = None
        return None, *(None if x is None else x.mul_(grad).to(leaf.dtype) for x, leaf in zip(slopes, leaves, strict=True))

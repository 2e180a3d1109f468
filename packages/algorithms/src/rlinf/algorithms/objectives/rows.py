"""Transitions as rows: what counts of a batch, and the sums that a loss over rows returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from rlinf.algorithms.checks import expect_shape
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric

if TYPE_CHECKING:
    from torch import Tensor

Aggregate = Literal["min", "mean"]
"""How several critics become one value: the pessimist's or the average."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The transitions of a batch, and how much each of them counts.

    total = Σᵢ wᵢ ℓᵢ,   weight = the number of rows with wᵢ ≠ 0

    So a mask of 0 and 1 gives the mean over what is valid, and importance weights of prioritised replay give the mean of
    weighted losses over the batch (Schaul et al., "Prioritized Experience Replay" (2016), alg. 1, arXiv:1511.05952), over any
    split. A row of weight 0 may hold anything.
    """

    size: int
    """B."""
    given: Tensor | None
    """`[B]`, no gradient; None if each counts 1, which needs no mask."""
    like: Tensor
    """A tensor on the device of the loss, of its type."""
    by: str
    """Who asks, for messages."""

    @classmethod
    def of(cls, by: str, rows: int, weight: Tensor | None, like: Tensor) -> Rows:
        """The rows of a loss; without weights, each counts 1.

        Raises:
            ShapeError: `weight` is not `[B]`.
        """
        if weight is None:
            return cls(rows, None, like, by)
        expect_shape(f"{by}(weight)", weight, (rows,))
        return cls(rows, at_least_float32(weight.detach()), like, by)

    @property
    def weight(self) -> Tensor:
        """`[B]`, no gradient."""
        if self.given is not None:
            return self.given
        return torch.ones(self.size, dtype=at_least_float32(self.like.detach()).dtype, device=self.like.device)

    def take(self, name: str, x: Tensor, *tail: int | None) -> Tensor:
        """The tensor in at least float32, 0 in rows of weight 0.

        Args:
            name: of the argument, for messages.
            x: `[B, *tail]`.
            tail: the sizes of the axes after B; None for any size.

        Raises:
            ShapeError: the shape is another; the message names the argument.
        """
        expect_rows(f"{self.by}({name})", x, self.size, *tail)
        if self.given is None:
            return at_least_float32(x)
        valid = (self.given != 0).reshape(-1, *[1] * len(tail))
        return torch.where(valid, at_least_float32(x), 0.0)

    def output(self, loss: Tensor, observed: Mapping[str, Tensor], *, td_error: Tensor | None = None) -> LossOutput[Tensor]:
        """The sum of losses with its weight; metrics are means over rows of weight ≠ 0, whatever their weight.

        Args:
            loss: `[B]`, differentiable and finite.
            observed: what to log of each row, `[B]`.
            td_error: see `LossOutput`.
        """
        error = None if td_error is None else td_error.detach()
        if self.given is None:
            with torch.no_grad():
                # Together: what is launched for each costs more than what it adds up.
                summed = torch.stack([*observed.values()]).sum(1, dtype=torch.float64)
            sums = cast("list[float]", summed.tolist())  # pyright: ignore[reportUnknownMemberType]
            metrics = {name: Metric(value, float(self.size)) for name, value in zip(observed, sums, strict=True)}
            return LossOutput(total=loss.sum(), weight=loss.new_tensor(float(self.size)), metrics=metrics, td_error=error)
        valid = self.given != 0
        with torch.no_grad():
            together = torch.stack([valid.to(loss.dtype), *observed.values()])
            summed = torch.where(valid, together, 0.0).sum(1, dtype=torch.float64)
        count, *rest = cast("list[float]", summed.tolist())  # pyright: ignore[reportUnknownMemberType]
        metrics = {name: Metric(value, count) for name, value in zip(observed, rest, strict=True)}
        # A product will do: in rows of weight 0 `take` has left nothing that is infinite or NaN.
        return LossOutput(total=(loss * self.given).sum(), weight=valid.sum().to(loss.dtype), metrics=metrics, td_error=error)


def expect_rows(place: str, x: Tensor, rows: int, *tail: int | None) -> None:
    """Refuses a tensor that is not `[rows, *tail]`; None stands for any size.

    Raises:
        ShapeError: the message names `place` and both shapes.
    """
    wanted = (rows, *tail)
    if x.dim() != len(wanted) or any(size not in (None, found) for size, found in zip(wanted, x.shape, strict=True)):
        text = ", ".join("any" if size is None else str(size) for size in wanted)
        raise ShapeError(place, f"expected shape ({text}), found {tuple(x.shape)}")


def coefficient(place: str, value: float | Tensor) -> float | Tensor:
    """A hyper-parameter that may also be learned elsewhere: a number ≥ 0, or a tensor `[]` without its gradient.

    Raises:
        ConfigError: the number is negative.
        ShapeError: the tensor is not a scalar.
    """
    if isinstance(value, torch.Tensor):
        expect_shape(place, value, ())
        return at_least_float32(value.detach())
    expect_range(place, value, 0.0, float("inf"))
    return value

"""Rows by group: any integers as names, in any order, of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rlinf.algorithms.advantages.statistics import divisor, root
from rlinf.algorithms.checks import expect_names, expect_shape
from rlinf.algorithms.lazy import torch
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which rows belong together, and how many of each group count. Sums are in float64."""

    index: Tensor
    """`[B]` int, the group of each row, from 0 on."""
    valid: Tensor | None
    """`[B]` bool, False for a row that takes no part; None if all do."""
    count: Tensor
    """`[G]`, how many rows of each group count; it may be 0."""
    size: int | None
    """How many rows each group has, if all have as many and lie together in order, which is faster; else None."""

    @classmethod
    def of(cls, group: Tensor, valid: Tensor | None) -> Grouping:
        """Numbers the groups.

        Args:
            group: `[B]` int, any numbers.
            valid: `[B]` bool; None if all rows count.
        """
        index, groups = numbered(group)
        size = _block_size(index, groups)
        nobody = torch.zeros(groups, dtype=torch.float64, device=group.device)
        alone = cls(index, valid, nobody, size)
        return cls(index, valid, alone.sum(torch.ones_like(index)), size)

    def counted(self, x: Tensor, otherwise: float = 0.0) -> Tensor:
        """`x` of rows that count, `otherwise` of the others: `[B]` from `[B]`."""
        return x if self.valid is None else torch.where(self.valid, x, otherwise)

    def sum(self, x: Tensor) -> Tensor:
        """Σ over the rows of each group that count: `[G]` from `[B]`."""
        x = self.counted(x.double())
        # Groups that lie together in order are a reshape, several times as fast as an index.
        if self.size is not None:
            return x.view(-1, self.size).sum(1)
        return torch.zeros_like(self.count).index_add(0, self.index, x)

    def of_rows(self, x: Tensor) -> Tensor:
        """What holds of each row's group: `[B]` from `[G]`."""
        if self.size is not None:
            return x[:, None].expand(-1, self.size).reshape(-1)
        return x.index_select(0, self.index)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of each group, `[G]` from `[B]`; NaN where no row counts."""
        return self.lowest(x) + self.sum(self._above(x)) / self.count

    def centred(self, x: Tensor) -> Tensor:
        """Each row less the mean of its group, `[B]`; exactly 0 where a group agrees, and where a row does not count."""
        # Differences from the lowest are exact for equal scores, so a group that agrees gives 0 and not rounding noise over a
        # deviation of 0.
        above = self._above(x)
        return self.counted(above - self.of_rows(self.sum(above) / self.count))

    def deviation(self, centred: Tensor, *, unbiased: bool) -> Tensor:
        """The standard deviation of each group, `[G]`; exactly 0 where it agrees.

        Args:
            centred: `[B]`, each row less the mean of its group.
            unbiased: whether one row is taken off the count (Bessel).
        """
        return root(self.sum(centred.square()) / divisor(self.count, unbiased=unbiased))

    def _above(self, x: Tensor) -> Tensor:
        """Each row less the lowest of its group: what makes the mean of equal numbers exact."""
        return x.double() - self.of_rows(self.lowest(x))

    def highest(self, x: Tensor) -> Tensor:
        """The greatest of each group, `[G]` from `[B]`; −∞ where no row counts."""
        return -self.lowest(-x)

    def lowest(self, x: Tensor) -> Tensor:
        """The least of each group, `[G]` from `[B]`; ∞ where no row counts."""
        counted = self.counted(x.detach().double(), torch.inf)
        if self.size is not None:
            return counted.view(-1, self.size).amin(1)
        return torch.full_like(self.count, torch.inf).scatter_reduce(0, self.index, counted, "amin")


def _block_size(index: Tensor, groups: int) -> int | None:
    """How many rows each group has, if all have as many and lie together in the order of their numbers; else None."""
    if groups == 0 or index.numel() % groups:
        return None
    size = index.numel() // groups
    blocks = torch.arange(groups, device=index.device)[:, None].expand(-1, size).reshape(-1)
    return size if torch.equal(index, blocks) else None


def numbered(name: Tensor) -> tuple[Tensor, int]:
    """Consecutive numbers for names, the same for the same name.

    Args:
        name: `[B]` int, any numbers.

    Returns:
        `[B]` int from 0 on, and how many numbers there are; some may be nobody's.
    """
    if name.numel() == 0:
        return name.long(), 0
    low, high = (int(x) for x in name.aminmax())
    # Small numbers serve as indices as they are, which spares a sort; names far apart would waste memory.
    if high - low < 4 * name.numel():
        return name.long() - low, high - low + 1
    names = cast("tuple[Tensor, Tensor]", name.unique(return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
    return names[1], names[0].numel()


def pairs(first: Tensor, second: Tensor) -> Tensor:
    """One name for each pair of names, `[B]` int: two rows share it if they agree in both.

    Args:
        first: `[B]` int.
        second: `[B]` int.
    """
    (one, _), (two, count) = numbered(first), numbered(second)
    return one * count + two


def checked(place: str, score: Tensor, group: Tensor, valid: Tensor | None) -> Tensor | None:
    """The rows that count as bool, None if all do; refuses shapes that disagree with `score`, and groups that are no integers.

    Raises:
        ShapeError: the message names `place` and the argument.
    """
    if score.dim() != 1:
        raise ShapeError(f"{place}(score)", f"expected [B], found {tuple(score.shape)}")
    expect_names(f"{place}(group)", group)
    expect_shape(f"{place}(group)", group, score.shape)
    if valid is None:
        return None
    expect_shape(f"{place}(valid)", valid, score.shape)
    return valid.bool()

"""What follows each decision of a row: the one place that knows of ends, of resets and of columns that nobody decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_fraction, expect_shape
from rlinf.algorithms.elementwise import keep
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.scan import scan_from_right
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Transitions:
    """A decision, its reward, and the value of what follows. Everything is `[B, T]` and 0 where masked.

    - A terminated decision is followed by nothing: its value after is 0. A truncated one is followed by its final observation,
      whose value it bootstraps from. Nothing else crosses an end, so a row may run across resets.
    - A masked column is skipped, wherever it lies: what follows a decision is the next unmasked column of its row. Where there
      is none, the row stops there and bootstraps.
    """

    reward: Tensor
    """The reward of each decision."""
    now: Tensor
    """The value of the observation that was decided on."""
    after: Tensor
    """The value of what followed; 0 where terminated."""
    gamma: float | Tensor
    """The discount of what follows."""
    unended: Tensor
    """Bool, an unmasked decision after which the episode goes on, in this row or beyond it."""
    valid: Tensor | None
    """Bool, False where masked; None if nothing is."""
    gaps: bool
    """Whether masked columns lie between unmasked ones of a row. Without them what follows is simply the next column."""

    def factor(self, place: str, x: float | Tensor) -> float | Tensor:
        """A discount or a λ, one number for all decisions or one for each (`[B, T]`).

        Raises:
            ShapeError: it is a tensor of another shape than `[B, T]`.
            ConfigError: it is outside [0, 1].
        """
        return _factor(place, x, self.reward, self.valid)

    def ahead(self, after: Tensor) -> Tensor:
        """rₜ + γ · what follows."""
        if isinstance(self.gamma, torch.Tensor):
            return torch.addcmul(self.reward, self.gamma, after)
        return torch.add(self.reward, after, alpha=self.gamma)

    def scan(self, x: Tensor, decay: float | Tensor) -> Tensor:
        """yₜ = xₜ + decayₜ y_next, within each episode, crossing masked columns as if they weren't there."""
        kept = _decay(self.unended, decay, x)
        if self.valid is None or not self.gaps:
            return scan_from_right(x, kept)
        # A masked column has x = 0 and decay 1: it hands the sum on unchanged.
        return keep(scan_from_right(x, kept + _number(~self.valid, x)), self.valid)

    @property
    def carries(self) -> Tensor:
        """Bool, an unmasked decision that another decision of its episode follows in the row."""
        column = torch.arange(1, self.reward.shape[1] + 1, dtype=torch.int32, device=self.reward.device)
        if self.valid is None or not len(column):
            return self.unended & (column < len(column))
        # Columns count from 1 here, so that 0 is none of them: the largest unmasked one is the row's last decision.
        return self.unended & (column < (column * self.valid.to(torch.int32)).amax(1, keepdim=True))

    def next_of(self, y: Tensor, otherwise: Tensor) -> Tensor:
        """`y` of the decision that follows in the row; `otherwise` where none does."""
        # No decision of the last column carries on in its row, so that this is never used.
        last = torch.zeros_like(y[:, :1])
        following, carries = torch.cat([self._first(y)[:, 1:], last], 1), self.carries
        return keep(following, carries) + keep(otherwise, ~carries)

    def _first(self, y: Tensor) -> Tensor:
        """`y` of the first unmasked column from each column on; 0 where there is none."""
        if self.valid is None or not self.gaps:
            return y
        # With decay 0 at unmasked columns each stops the sum, so that a masked one shows the next unmasked value.
        return scan_from_right(keep(y, self.valid), _number(~self.valid, y))


def _number(condition: Tensor, like: Tensor) -> Tensor:
    """1 or 0, in the type of another tensor."""
    return condition.view(torch.uint8).to(like.dtype)  # of bool itself it takes a CPU seven times as long


def _decay(unended: Tensor, decay: float | Tensor, like: Tensor) -> Tensor:
    if isinstance(decay, torch.Tensor):
        return keep(decay.to(like.dtype).expand(like.shape), unended)
    return _number(unended, like).mul_(decay)


def transitions(
    place: str,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    mask: Tensor | None,
    value_next: Tensor | None,
) -> Transitions:
    """What follows each decision.

    Args:
        place: who asks, for messages.
        reward: `[B, T]`.
        value: `[B, T + 1]`, or `[B, T]` where `value_next` is given.
        terminated: `[B, T]` bool.
        truncated: `[B, T]` bool.
        gamma: a discount for all decisions, or `[B, T]`, one for each.
        mask: `[B, T]` bool, False where nothing was decided.
        value_next: `[B, T]`, the value of the observation after each decision; None where `value` tells.

    Returns:
        Floats in float32, or in float64 if an input is.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` is outside [0, 1].
    """
    _check_shapes(place, reward, value, terminated, truncated, mask, value_next)
    given = [x.dtype for x in (reward, value, value_next) if x is not None]
    dtype = reduce(torch.promote_types, given, torch.float32)
    reward, value = reward.to(dtype), value.to(dtype)
    valid = None if mask is None else mask.bool()
    terminated, columns = terminated.bool(), reward.shape[1]
    # Credit crosses neither kind of end; they differ only in what follows (0 or the value of the final observation).
    unended = ~(terminated | truncated.bool())
    now, gamma = value[:, :columns], _factor(f"{place}(gamma)", gamma, reward, valid)
    after = value[:, 1:] if value_next is None else value_next.to(dtype)
    if valid is None:
        return Transitions(reward, now, keep(after, ~terminated), gamma, unended, None, gaps=False)
    unended, reward, now = unended & valid, keep(reward, valid), keep(now, valid)
    t = Transitions(reward, now, after, gamma, unended, valid, gaps=_has_gaps(valid))
    # `value` of a masked column belongs to no state that was decided on; the next decision's counts.
    if value_next is None and t.gaps:
        after = t.next_of(now, after)
    return replace(t, after=keep(after, valid & ~terminated))


def _has_gaps(valid: Tensor) -> bool:
    """Whether any row has masked columns between unmasked ones: more than one column where it begins to be unmasked."""
    # Padding at either end is no gap; it needs none of the slower passes.
    begins = valid.clone()
    begins[:, 1:] &= ~valid[:, :-1]
    return bool((begins.sum(1) > 1).any())


def _factor(place: str, x: float | Tensor, reward: Tensor, valid: Tensor | None) -> float | Tensor:
    if isinstance(x, torch.Tensor):
        expect_shape(place, x, reward.shape)
        x = x.to(reward.dtype)
        # A discount of a masked column may be anything, and is not checked.
        x = x if valid is None else torch.where(valid, x, torch.zeros_like(x))
    expect_fraction(place, x)
    return x


def _check_shapes(
    place: str,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor | None,
    value_next: Tensor | None,
) -> None:
    if reward.dim() != 2:
        raise ShapeError(f"{place}(reward)", f"expected [B, T], found {tuple(reward.shape)}")
    rows, columns = reward.shape
    if value_next is None or tuple(value.shape) != (rows, columns):
        expect_shape(f"{place}(value)", value, (rows, columns + 1))
    optional = {"terminated": terminated, "truncated": truncated, "mask": mask, "value_next": value_next}
    for name, tensor in optional.items():
        if tensor is not None:
            expect_shape(f"{place}({name})", tensor, (rows, columns))

"""What follows each decision of a row: the one place that knows of ends, of resets and of columns that nobody decided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from rlinf.algorithms.scan import scan_from_right
from rlinf.algorithms.shapes import expect_fraction, expect_shape
from rlinf.core.errors import ShapeError


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
    following: Tensor
    """The column of the next decision of the row; T if there is none."""

    def factor(self, place: str, x: float | Tensor) -> float | Tensor:
        """A discount or a λ, one number for all decisions or one for each (`[B, T]`).

        Raises:
            ShapeError: it is a tensor of another shape than `[B, T]`.
        ConfigError: it is outside [0, 1].
        """
        return _factor(place, x, self.reward, self.valid)

    def ahead(self, after: Tensor) -> Tensor:
        """rₜ + γ · what follows."""
        if isinstance(self.gamma, Tensor):
            return torch.addcmul(self.reward, self.gamma, after)
        return torch.add(self.reward, after, alpha=self.gamma)

    def scan(self, x: Tensor, decay: float | Tensor) -> Tensor:
        """yₜ = xₜ + decayₜ y_next, within each episode, crossing masked columns as if they weren't there."""
        kept = torch.where(self.unended, torch.as_tensor(decay, dtype=x.dtype, device=x.device), 0.0)
        if self.valid is None:
            return scan_from_right(x, kept)
        return torch.where(self.valid, scan_from_right(x, torch.where(self.valid, kept, 1.0)), 0.0)

    @property
    def carries(self) -> Tensor:
        """Bool, an unmasked decision that another decision of its episode follows in the row."""
        return self.unended & (self.following < self.reward.shape[1])

    def next_of(self, y: Tensor, otherwise: Tensor) -> Tensor:
        """`y` of the decision that follows in the row; `otherwise` where none does."""
        return torch.where(self.carries, y.gather(1, self.following.clamp(max=y.shape[1] - 1)), otherwise)


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
    """
    _check_shapes(place, reward, value, terminated, truncated, mask, value_next)
    given = [x.dtype for x in (reward, value, value_next) if x is not None]
    dtype = reduce(torch.promote_types, given, torch.float32)
    reward, value = reward.to(dtype), value.to(dtype)
    valid = None if mask is None else mask.bool()
    terminated, columns = terminated.bool(), reward.shape[1]
    unended = ~(terminated | truncated.bool())
    now, gamma = value[:, :columns], _factor(f"{place}(gamma)", gamma, reward, valid)
    following = torch.arange(1, columns + 1, device=value.device).expand(reward.shape)
    if valid is None:
        after = value[:, 1:] if value_next is None else value_next.to(dtype)
        return Transitions(reward, now, torch.where(terminated, 0.0, after), gamma, unended, None, following)
    column, following, unended = following, _following(valid), unended & valid
    if value_next is None:
        after = value.gather(1, torch.where(unended & (following < columns), following, column))
    else:
        after = value_next.to(dtype)
    after = torch.where(valid & ~terminated, after, 0.0)
    return Transitions(torch.where(valid, reward, 0.0), torch.where(valid, now, 0.0), after, gamma, unended, valid, following)


def _following(valid: Tensor) -> Tensor:
    """The first unmasked column after each column; T if there is none."""
    rows, columns = valid.shape
    beyond = torch.full((rows, 1), columns, device=valid.device)
    index = torch.where(valid, torch.arange(columns, device=valid.device), columns)
    return torch.cat([index, beyond], dim=1).flip(1).cummin(1).values.flip(1)[:, 1:]


def _factor(place: str, x: float | Tensor, reward: Tensor, valid: Tensor | None) -> float | Tensor:
    if isinstance(x, Tensor):
        expect_shape(place, x, reward.shape)
        x = x.to(reward.dtype)
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

"""Imitation: behaviour cloning, of policies with a density and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Rows
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["l2", "l1"]
"""The square of a difference, or its absolute value."""


@takes_tensors
def bc_loss(logprob: Tensor, *, executed: Tensor | None = None, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """How unlikely the policy finds what the data did.

    L = −1/n Σ log π(a|s) over the n elements of an action that count

    Pomerleau, "ALVINN: An Autonomous Land Vehicle in a Neural Network" (1988); Ross et al., "A Reduction of Imitation
    Learning and Structured Prediction to No-Regret Online Learning" (2011), sec. 2, arXiv:1011.0686. Elements of one action
    are averaged: neither K nor A enters the size.

    Args:
        logprob: `[B]`, `[B, K]` or `[B, K, A]`, of the data's actions; differentiable.
        executed: `[B, K]` bool, the steps of a chunk that count, such as those that a human intervened in (HG-DAgger); a row
            without any counts nowhere. None for all.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `bc_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    if not 1 <= logprob.dim() <= 3:
        raise ShapeError("bc_loss(logprob)", f"expected [B], [B, K] or [B, K, A], found {tuple(logprob.shape)}")
    rows = _rows("bc_loss", logprob, executed, weight)
    logprob = rows.take("logprob", logprob, *[None] * (logprob.dim() - 1))
    loss = -_mean(_executed_only(logprob, executed), executed)
    return rows.output(loss, {"bc_loss": loss})


@takes_tensors
def action_loss(
    action: Tensor, action_data: Tensor, *, norm: Norm = "l2", executed: Tensor | None = None, weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """How far a deterministic policy, or an action head without a density, is from what the data did.

    L = 1/n Σ (μ(s) − a)²   or   L = 1/n Σ |μ(s) − a|,   over the n elements of an action that count

    The absolute value as in Kim et al., "Fine-Tuning Vision-Language-Action Models: Optimizing Speed and Success" (2025),
    sec. 4, arXiv:2502.19645. Elements of one action are averaged: neither K nor A enters the size.

    Args:
        action: `[B, A]` or `[B, K, A]`, μ(s); differentiable.
        action_data: the same shape, a.
        norm: "l2" for the square (no half), "l1" for the absolute value.
        executed: `[B, K]` bool, the steps of a chunk that count; a row without any counts nowhere. None for all.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `bc_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `norm` is neither of the two.
    """
    expect_choice("action_loss(norm)", norm, ("l2", "l1"))
    rows = _rows("action_loss", action, executed, weight)
    error = _difference(rows, action, action_data, executed)
    loss = _mean(error.square() if norm == "l2" else error.abs(), executed)
    return rows.output(loss, {"bc_loss": loss})


def squared_distance(rows: Rows, action: Tensor, action_data: Tensor, executed: Tensor | None) -> Tensor:
    """The mean square of what differs between two actions, `[B]`; 0 where no step counts."""
    return _mean(_difference(rows, action, action_data, executed).square(), executed)


def _difference(rows: Rows, action: Tensor, action_data: Tensor, executed: Tensor | None) -> Tensor:
    if not 2 <= action.dim() <= 3:
        raise ShapeError(f"{rows.by}(action)", f"expected [B, A] or [B, K, A], found {tuple(action.shape)}")
    expect_shape(f"{rows.by}(action_data)", action_data, action.shape)
    _check_executed(rows.by, action, executed)
    tail = [None] * (action.dim() - 1)
    found, wanted = rows.take("action", action, *tail), rows.take("action_data", action_data, *tail)
    return _executed_only(found, executed) - _executed_only(wanted, executed)


def _rows(by: str, x: Tensor, executed: Tensor | None, weight: Tensor | None) -> Rows:
    _check_executed(by, x, executed)
    rows = Rows.of(by, x.shape[0], weight, x)
    if executed is None:
        return rows
    # A row of which no step counts would add 0 to the total, and 1 to the weight.
    return Rows.of(by, rows.size, torch.where(executed.bool().any(1), rows.weight, 0.0), rows.like)


def _check_executed(by: str, x: Tensor, executed: Tensor | None) -> None:
    if executed is None:
        return
    if x.dim() < 2:
        raise ShapeError(f"{by}(executed)", f"expected None for actions of one step, found {tuple(executed.shape)}")
    expect_shape(f"{by}(executed)", executed, x.shape[:2])


def _executed_only(x: Tensor, executed: Tensor | None) -> Tensor:
    return x if executed is None else torch.where(_like(executed, x), x, 0.0)


def _like(executed: Tensor, x: Tensor) -> Tensor:
    return executed.bool().reshape(*executed.shape, *[1] * (x.dim() - 2))


def _mean(x: Tensor, executed: Tensor | None) -> Tensor:
    """The mean over all axes but the first, of what counts; 0 if nothing does. What does not count is 0 already."""
    if executed is None:
        return x if x.dim() == 1 else x.flatten(1).mean(1)
    count = _like(executed, x).expand_as(x).flatten(1).sum(1)
    return x.flatten(1).sum(1) / count.clamp(min=1)

"""From what a loss says of each decision to sums, weights and metrics, with one transfer to Python at the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_shape
from rlinf.core.data import LossOutput
from rlinf.core.metrics import ExplainedVariance, Metric, Statistic


@dataclass(frozen=True, slots=True)
class Terms:
    """A loss before it is summed; everything is `[B, T]` and 0 where masked."""

    loss: Tensor
    """What each decision adds to the total; differentiable."""
    observed: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What to log of each decision; no gradient. `[]` for what is summed over the decisions already."""
    explained: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict[str, tuple[Tensor, Tensor]])
    """A target and the error of its prediction, whose explained variance is logged; no gradient."""
    by_row: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What to log of each row, `[B]`; 0 for a row without decisions, which counts nowhere; no gradient."""


def joined(parts: list[Terms]) -> Terms:
    """The sum of losses, with the metrics of all."""
    loss = parts[0].loss
    observed, explained, by_row = dict(parts[0].observed), dict(parts[0].explained), dict(parts[0].by_row)
    for part in parts[1:]:
        loss = loss + part.loss
        observed.update(part.observed)
        explained.update(part.explained)
        by_row.update(part.by_row)
    return Terms(loss, observed, explained, by_row)


def per_decision(x: Tensor) -> Tensor:
    """The mean over what follows the axes B and T: `[B, T]` from `[B, T]`, `[B, T, K]` or `[B, T, K, A]`."""
    return x if x.dim() == 2 else x.flatten(2).mean(2)


def counted(shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How many decisions are so, `[]` each: from bools, of which those of one decision's elements are a share of it."""
    return {name: x.sum() / x.shape[2:].numel() for name, x in shares.items()}


def like(x: Tensor, target: Tensor) -> Tensor:
    """`x` of shape `[B, T]` with axes of size 1 appended, until it has as many as `target`."""
    return x.reshape(*x.shape, *[1] * (target.dim() - x.dim()))


def summed(terms: Terms, mask: Tensor, aggregation: Aggregation = TOKEN_MEAN) -> LossOutput[Tensor]:
    """The loss with its weight; metrics are means over unmasked decisions or over rows, whatever the aggregation.

    Args:
        terms: values of each decision.
        mask: `[B, T]` bool.
        aggregation: what the total is a sum of, and what the weight counts.
    """
    total, weight, sums = sums_of(terms, mask, aggregation)
    return LossOutput(total=total, weight=weight, metrics=metrics_of(terms.observed, terms.explained, sums, terms.by_row))


def sums_of(terms: Terms, mask: Tensor, aggregation: Aggregation) -> tuple[Tensor, Tensor, Tensor]:
    """The total and the weight, each `[]`, and what `metrics_of` reads; all three add up over any split into rows."""
    decisions = mask.bool().sum(1).to(terms.loss.dtype)
    factor, weight = aggregation.of_rows(decisions)
    total = terms.loss.sum() if aggregation.mode == "token-mean" else terms.loss.sum(1) @ factor
    return total, weight, _sums(terms, decisions)


@torch.no_grad()
def _sums(terms: Terms, decisions: Tensor) -> Tensor:
    sums = [decisions.sum().double(), *(values.sum().double() for values in terms.observed.values())]
    for target, error in terms.explained.values():
        target, error = target.double(), error.double()
        sums += [error.sum(), error.square().sum(), target.sum(), target.square().sum()]
    if terms.by_row:
        sums += [(decisions > 0).sum().double(), *(values.sum().double() for values in terms.by_row.values())]
    return torch.stack(sums)


def metrics_of(
    observed: Collection[str], explained: Collection[str], sums: Tensor, by_row: Collection[str] = ()
) -> dict[str, Statistic]:
    """The metrics by name, from the last of `sums_of`; one transfer to Python."""
    count, *rest = cast("list[float]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]
    metrics: dict[str, Statistic] = {name: Metric(rest[i], count) for i, name in enumerate(observed)}
    for i, name in enumerate(explained):
        start = len(observed) + 4 * i
        metrics[name] = ExplainedVariance(count, *rest[start : start + 4])
    if by_row:
        rows, *totals = rest[len(observed) + 4 * len(explained) :]
        metrics |= {name: Metric(total, rows) for name, total in zip(by_row, totals, strict=True)}
    return metrics


def aggregate(loss: Tensor, mask: Tensor, aggregation: Aggregation = TOKEN_MEAN) -> LossOutput[Tensor]:
    """Any loss of decisions as a sum and its weight, whose ratio over the whole batch is the mean that `aggregation` names.

    L = Σ factor · ℓ / Σ weight, see `Aggregation`

    Args:
        loss: `[B, T]`, what each decision costs; differentiable.
        mask: `[B, T]` bool.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `loss`, its mean over decisions.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("aggregate(loss)", loss, mask.shape)
    known = torch.where(mask.bool(), precise(loss), 0.0)
    return summed(Terms(known, {"loss": known.detach()}), mask, aggregation)

"""From what a loss says of each decision to sums, weights and metrics, with one transfer to Python at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from rlinf.core.data import LossOutput
from rlinf.core.metrics import Metric


@dataclass(frozen=True, slots=True)
class Terms:
    """A loss before it is summed; everything is `[B, T]` and 0 where masked."""

    loss: Tensor
    """What each decision adds to the total; differentiable."""
    observed: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What to log of each decision; no gradient."""
    ratios: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict[str, tuple[Tensor, Tensor]])
    """Metrics that are no mean over decisions: numerator and denominator, each `[]`."""


def per_decision(x: Tensor) -> Tensor:
    """The mean over what follows the axes B and T: `[B, T]` from `[B, T]`, `[B, T, K]` or `[B, T, K, A]`."""
    return x if x.dim() == 2 else x.flatten(2).mean(2)


def precise(x: Tensor) -> Tensor:
    """`x` in float32, or as it is if it is finer."""
    return x if x.dtype == torch.float64 else x.float()


def like(x: Tensor, target: Tensor) -> Tensor:
    """`x` of shape `[B, T]` with axes of size 1 appended, until it has as many as `target`."""
    return x.reshape(*x.shape, *[1] * (target.dim() - x.dim()))


def summed(terms: Terms, mask: Tensor) -> LossOutput[Tensor]:
    """The loss with its weight, which is the number of unmasked decisions.

    Args:
        terms: values of each decision.
        mask: `[B, T]` bool.
    """
    weight = mask.sum().to(torch.float32)
    with torch.no_grad():
        pairs = {name: (values.sum(), weight) for name, values in terms.observed.items()} | dict(terms.ratios)
        numbers = _to_python([number for pair in pairs.values() for number in pair])
    metrics = {name: Metric(numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(pairs)}
    return LossOutput(total=terms.loss.sum(), weight=weight, metrics=metrics)


def _to_python(scalars: list[Tensor]) -> list[float]:
    """Python's numbers from tensors of shape `[]`, in one transfer."""
    return cast("list[float]", torch.stack(scalars).tolist()) if scalars else []  # pyright: ignore[reportUnknownMemberType]

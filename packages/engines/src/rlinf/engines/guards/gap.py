"""How far the trainer's log-probabilities are from those of the rollout, for the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric, Statistic
from rlinf.engines.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

POWER = 32


@dataclass(frozen=True, slots=True)
class LargestBound(Statistic):
    """An upper bound of the largest of n numbers xᵢ ≥ 0 that adds up over micro-batches and ranks, which a maximum does not.

    max xᵢ ≤ (Σ xᵢ³²)^(1/32) ≤ n^(1/32) max xᵢ: for a million numbers it is at most 1.54 times the largest.
    """

    powers: float
    """Σ xᵢ³²."""

    @property
    def mean(self) -> float:
        """The bound."""
        return self.powers ** (1 / POWER)


def drift(rollout: Tensor, trainer: Tensor, mask: Tensor, *, tolerance: float = 0.1) -> dict[str, Statistic]:
    """Metrics of the gap Δ = log π_trainer − log π_rollout of decisions that the rollout drew.

    `logprob_gap/k1`: mean of −Δ, and `logprob_gap/k3`: mean of e^Δ − 1 − Δ, both estimates of KL(π_rollout ‖ π_trainer), the second
    never negative. `logprob_gap/abs`: mean of |Δ|. `logprob_gap/max_bound`: see `LargestBound`. `logprob_gap/beyond`: the share
    with |e^Δ − 1| > tolerance.

    Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.

    Args:
        rollout: log-probabilities when decisions were drawn, any shape.
        trainer: the trainer's of the same decisions, of the same shape.
        mask: what counts, of the same shape.
        tolerance: how far the ratio may be from 1.

    Raises:
        ShapeError: shapes differ.
    """
    with torch.no_grad():
        gap = gaps(rollout, trainer, mask)
        weight = float(gap.numel())
        return {
            "logprob_gap/k1": Metric(-float(gap.sum()), weight),
            # For a small Δ, e^Δ − 1 would lose most of its digits.
            "logprob_gap/k3": Metric(float((torch.expm1(gap) - gap).sum()), weight),
            "logprob_gap/abs": Metric(float(gap.abs().sum()), weight),
            "logprob_gap/max_bound": LargestBound(float((gap.abs() ** POWER).sum())),
            "logprob_gap/beyond": Metric(float(beyond(gap, tolerance).sum()), weight),
        }


def gaps(rollout: Tensor, trainer: Tensor, mask: Tensor) -> Tensor:
    """`[n]` float64: Δ of what counts.

    Raises:
        ShapeError: shapes differ.
    """
    for name, tensor in (("trainer", trainer), ("mask", mask)):
        if tensor.shape != rollout.shape:
            raise ShapeError(name, f"expected {list(rollout.shape)} as of the rollout, found {list(tensor.shape)}")
    return (trainer.detach().double() - rollout.detach().double())[mask.bool()]


def beyond(gap: Tensor, tolerance: float) -> Tensor:
    """`[n]` bool: where the ratio is not 1 ± tolerance; also where it is no number."""
    return ~(torch.expm1(gap).abs() <= tolerance)


def worst_ratio(gap: Tensor) -> float:
    """The ratio that is farthest from 1; what is no number counts as the farthest."""
    return float(torch.exp(gap[torch.expm1(gap).abs().nan_to_num(torch.inf).argmax()]))

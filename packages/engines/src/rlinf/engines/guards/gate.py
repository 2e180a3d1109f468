"""The gate before the first update: the trainer must score the rollout's decisions as the rollout did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.config import expect_range
from rlinf.core.errors import RLinfError
from rlinf.core.metrics import Statistic

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf.core.data import Scores
    from rlinf.engines.guards.causes import Cause

SUSPECTS = (
    "Usual suspects: dropout or batch norm left on (`rlinf check-policy` tells), weights not synchronised, another temperature, "
    "precision or normalisation in rollout. actor.logprob_tolerance and actor.logprob_outliers allow what is known to be rounding."
)


class StepZeroError(RLinfError):
    """Trainer and rollout disagree before any update.

    Attributes:
        causes: what accounts for it, the strongest first; empty if nothing that was tried does.
    """

    def __init__(self, place: str, problem: str, remedy: str = "", causes: Sequence[Cause] = ()) -> None:
        super().__init__(place, problem, remedy)
        self.causes = tuple(causes)
        self.args = (place, problem, remedy, self.causes)  # what unpickling calls the constructor with


@dataclass(frozen=True, slots=True)
class StepZeroGate:
    """Lets a run begin only if π_trainer / π_rollout is 1 ± `tolerance` for the decisions of the first rollout."""

    tolerance: float = 1e-3
    """How far the ratio may be from 1. About 1e-5 of float32 engines of one kind, 0.1 of bfloat16 ones."""
    allowed_share: float = 0.0
    """The share of decisions that may be farther."""

    def __post_init__(self) -> None:
        expect_range("tolerance", self.tolerance, 0.0, 1e3, open_low=True)
        expect_range("allowed_share", self.allowed_share, 0.0, 1.0, open_high=True)

    def measure(self, scores: Scores[Tensor]) -> dict[str, Statistic]:
        """The metrics of `drift`.

        Args:
            scores: of any rollout.

        Raises:
            ShapeError: shapes differ.
        """
        from rlinf.engines.guards.gap import drift

        return drift(scores.rollout, scores.trainer, scores.mask, tolerance=self.tolerance)

    def check(self, scores: Scores[Tensor], *, place: str) -> dict[str, Statistic]:
        """The metrics of `drift`.

        Args:
            scores: of the first rollout, before any update.
            place: who checks, for the message.

        Raises:
            StepZeroError: too many ratios are not 1 ± tolerance; the message lists likely causes with their evidence.
            ShapeError: shapes differ.
        """
        from rlinf.engines.guards.causes import likely_causes
        from rlinf.engines.guards.gap import beyond, gaps, worst_ratio

        gap = gaps(scores.rollout, scores.trainer, scores.mask)
        outside = beyond(gap, self.tolerance)
        if float(outside.sum()) <= self.allowed_share * gap.numel():
            return self.measure(scores)
        problem = (
            f"expected ratios of 1 ± {self.tolerance:g} before any update, found {worst_ratio(gap):.3g}, "
            f"and {int(outside.sum())} of {gap.numel()} decisions beyond"
        )
        causes = likely_causes(scores)
        listed = "".join(f"\n  {number}. {cause.name}: {cause.evidence}. {cause.remedy}" for number, cause in enumerate(causes, 1))
        raise StepZeroError(place, f"{problem}; likely causes:{listed}" if causes else problem, "" if causes else SUSPECTS, causes)

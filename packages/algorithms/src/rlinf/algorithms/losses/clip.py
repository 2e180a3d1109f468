"""The bounds of a clipped surrogate, and the losses by name that have them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlinf.algorithms.elementwise import pessimistic
from rlinf.algorithms.losses.policy_loss import PolicyLoss
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND
from rlinf.algorithms.shapes import expect_range


@dataclass(frozen=True, slots=True)
class Clip:
    """Between which bounds a ratio may move a loss.

    L = max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â), and with c at most −c Â where Â < 0
    """

    low: float
    """ε_low in [0, 1]."""
    high: float
    """ε_high ≥ 0."""
    dual: float | None = None
    """c > 1; None for no such bound."""
    log_min: float | None = None
    """The least log-ratio, in [−20, 0]; None for −20."""
    log_max: float | None = None
    """The greatest log-ratio, in [0, 20]; None for 20."""

    def __post_init__(self) -> None:
        infinity = float("inf")
        expect_range("clip_ratio_low", self.low, 0.0, 1.0)
        expect_range("clip_ratio_high", self.high, 0.0, infinity)
        expect_range("clip_ratio_c", self.dual, 1.0, infinity, open_low=True)
        expect_range("clip_log_ratio_min", self.log_min, -LOG_RATIO_BOUND, 0.0)
        expect_range("clip_log_ratio_max", self.log_max, 0.0, LOG_RATIO_BOUND)

    @property
    def log_bounds(self) -> tuple[float, float]:
        """The least and the greatest log-ratio."""
        low, high = self.log_min, self.log_max
        return -LOG_RATIO_BOUND if low is None else low, LOG_RATIO_BOUND if high is None else high

    def surrogate(self, ratio: Tensor, gain: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each ratio; and 1 or 0 for whether it lost its gradient to the bounds, and to the dual clip."""
        loss, clipped, capped = pessimistic(ratio, gain, 1.0 - self.low, 1.0 + self.high, self.dual)
        return loss, {"clip_fraction": clipped, "dual_clip_fraction": capped}


@dataclass(frozen=True, slots=True)
class ClippedLoss(PolicyLoss):
    """What losses with a clipped surrogate have in common: its bounds."""

    clip_ratio_low: float = 0.2
    """ε_low in [0, 1], how far the ratio may fall below 1."""
    clip_ratio_high: float = 0.2
    """ε_high ≥ 0, how far the ratio may rise above 1."""
    clip_ratio_c: float | None = None
    """The bound c > 1 of the dual clip; None for none."""
    clip_log_ratio_min: float | None = None
    """The least log-ratio, in [−20, 0]; None for −20."""
    clip_log_ratio_max: float | None = None
    """The greatest log-ratio, in [0, 20]; None for 20."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        self.bounds()

    def bounds(self) -> Clip:
        """The bounds as one thing, checked."""
        low, high = self.clip_ratio_low, self.clip_ratio_high
        return Clip(low, high, self.clip_ratio_c, self.clip_log_ratio_min, self.clip_log_ratio_max)

"""The correction of a policy loss, by name and with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from rlinf.algorithms.compat import CORRECTIONS
from rlinf.algorithms.losses.correction import (
    Correction,
    Divergence,
    Level,
    check_bounds,
    check_criterion,
    divergence_rejection,
    geometric_rejection,
    masked_importance,
    rejection,
    truncated_importance,
    veto,
)
from rlinf.algorithms.losses.mismatch import mismatch, perplexity
from rlinf.algorithms.precision import precise
from rlinf.algorithms.shapes import expect_range
from rlinf.core.errors import ConfigError, did_you_mean

_MODES = ["truncate", "mask", "reject", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionConfig:
    """The correction of a policy loss by name: `algorithm.correction: {mode: truncate, level: token, high: 2.0}`.

    Dropped decisions add nothing to the total and still count in the weight, as in IcePop. For a mean over the kept ones alone, as
    verl takes it, apply `of` before the batch is parted and narrow the mask to `mask & correction.keep`.
    """

    mode: Literal["truncate", "mask", "reject", "none", "tis", "mis", "icepop"] = "truncate"
    """`truncated_importance` (also "tis"), `masked_importance` (also "mis" and "icepop") or `rejection`; "none" weighs nothing and
    drops nothing by bounds, which leaves what the keys below drop, and the metrics."""
    level: Level = "token"
    """What has one ratio."""
    low: float = 0.0
    """The lower bound of the ratio, ≥ 0."""
    high: float = 2.0
    """The upper bound of the ratio."""
    geometric_low: float | None = None
    """The lower bound of `geometric_rejection`, on top of the rest; None for none of it."""
    geometric_high: float | None = None
    """The upper bound of `geometric_rejection`; None for none of it."""
    reject_above: Mapping[Divergence, float] = field(default_factory=dict[Divergence, float])
    """Thresholds of `divergence_rejection` by criterion, on top of the rest, as `{token_k2: 2.0, seq_max_k3: 5.0}`."""
    inverse: bool = False
    """Whether the bounds of `reject` and of `geometric_rejection` are those of π_rollout / π_train, as verl's are, instead of
    π_train / π_rollout; see `rejection`. Weights are always π_train / π_rollout."""
    veto: float | None = None
    """The smallest ratio that a decision may have, else its row is dropped; None for any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", CORRECTIONS.get(self.mode, self.mode))
        if self.mode not in _MODES:
            raise ConfigError("mode", f"no mode '{self.mode}'", did_you_mean(self.mode, _MODES))
        check_bounds(self.level, self.low, self.high, keys="{}")
        if (self.geometric_low is None) != (self.geometric_high is None):
            problem = f"expected both bounds or none, found {self.geometric_low} and {self.geometric_high}"
            raise ConfigError("geometric_low", problem)
        if self.geometric_low is not None and self.geometric_high is not None:
            check_bounds("geometric", self.geometric_low, self.geometric_high, keys="geometric_{}")
        if self.inverse and self.mode != "reject" and self.geometric_low is None:
            remedy = "Use mode 'reject', or give geometric_low and geometric_high."
            raise ConfigError("inverse", f"expected something that rejects, found mode '{self.mode}' alone", remedy)
        for criterion, threshold in self.reject_above.items():
            check_criterion(criterion, threshold, place=f"reject_above.{criterion}")
        expect_range("veto", self.veto, 0.0, 1.0, open_low=True)

    def of(self, logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor) -> Correction:
        """The correction of tensors, with the metrics of `mismatch` and of `perplexity`.

        Args:
            logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update.
            logprob_rollout: the same shape, by the engine that sampled.
            mask: `[B, T]` bool.

        Raises:
            ShapeError: a shape disagrees; the message names the argument.
        """
        pair = (logprob_train, logprob_rollout, mask)
        if self.mode == "reject":
            found = rejection(*pair, level=self.level, low=self.low, high=self.high, inverse=self.inverse)
        elif self.mode == "none":
            found = Correction(mask.to(precise(logprob_train).dtype), mask.bool())
        else:
            weigh = truncated_importance if self.mode == "truncate" else masked_importance
            found = weigh(*pair, level=self.level, low=self.low, high=self.high)
        if self.geometric_low is not None and self.geometric_high is not None:
            found = found & geometric_rejection(*pair, low=self.geometric_low, high=self.geometric_high, inverse=self.inverse)
        if self.veto is not None:
            found = found & veto(*pair, threshold=self.veto)
        for criterion, threshold in self.reject_above.items():
            found = found & divergence_rejection(*pair, criterion=criterion, threshold=threshold)
        return replace(found, observed={**found.observed, **mismatch(*pair)}, by_row=perplexity(*pair))

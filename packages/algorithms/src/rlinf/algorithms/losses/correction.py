"""Corrections for a rollout engine that computes other probabilities than the trainer: terms that combine, and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.compat.words import CORRECTIONS
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.ratio import LOG_RATIO_BOUND
from rlinf.algorithms.losses.rollout_gap import joint, mismatch, perplexity
from rlinf.algorithms.losses.terms import Aggregation, Terms
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]
"""What has one ratio: a decision; a row, by the product over its decisions; a row, by their geometric mean."""

Divergence = Literal["token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"]
"""What is measured of a decision, or of a row: the sum, the mean or the maximum over its decisions; and by which estimator."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What a decision's loss is multiplied with, and whether it takes part at all. Everything is `[B, T]` without gradient."""

    weight: Tensor
    """At least 0; 0 where masked."""
    keep: Tensor
    """bool, False where dropped and where masked."""
    observed: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """What to log of each decision, 0 where masked."""
    by_row: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """What to log of each row, `[B]`; 0 for a row without decisions."""

    @property
    def factor(self) -> Tensor:
        """The weight, 0 where dropped."""
        return torch.where(self.keep, self.weight, 0.0)

    def __and__(self, other: Correction) -> Correction:
        """Both: weights multiply, and what either drops is dropped."""
        observed = {**self.observed, **other.observed}
        # The share dropped by both criteria together; the sum would count a decision twice.
        both = self.observed.keys() & other.observed.keys() & {"rollout_dropped"}
        observed |= {name: torch.maximum(self.observed[name], other.observed[name]) for name in both}
        return Correction(self.weight * other.weight, self.keep & other.keep, observed, {**self.by_row, **other.by_row})


@takes_tensors
def truncated_importance(
    logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor, *, level: Level = "token", low: float = 0.0, high: float = 2.0
) -> Correction:
    """Truncated importance sampling (TIS): weights within bounds, nothing dropped.

    w = clip(ρ, low, high),   ρ = π_train(a) / π_rollout(a)

    Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025), https://fengyao.notion.site/off-policy-rl,
    with the upper bound alone and a ratio for each token; by rows, Liu et al., "When Speed Kills Stability" (2025),
    https://richardli.xyz/rl-collapse. A log-ratio is kept within ±20 before it is exponentiated.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.
        level: what has one ratio.
        low: the lower bound, ≥ 0.
        high: the upper bound, ≥ `low`.

    Returns:
        Metrics: `rollout_weight` and `rollout_weight_square`, whose means m and q give the effective sample size m² / q as a share
        of the decisions; `rollout_truncated`, the share of decisions whose weight a bound set.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: the bounds are not in order, or there is no such level.
    """
    ratio = _ratio(logprob_train, logprob_rollout, mask, level, (low, high), by="truncated_importance")
    keep = mask.bool()
    weight = torch.where(keep, ratio.clamp(low, high), 0.0)
    return Correction(weight, keep, {**_observed_weight(weight), "rollout_truncated": (keep & (weight != ratio)).float()})


@takes_tensors
def masked_importance(
    logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor, *, level: Level = "token", low: float = 0.5, high: float = 5.0
) -> Correction:
    """Masked importance sampling (MIS, IcePop): what lies outside the bounds is dropped, the rest keeps its true ratio.

    w = ρ where low ≤ ρ ≤ high, dropped elsewhere,   ρ = π_train(a) / π_rollout(a)

    Ling Team, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking Model" (2025), arXiv:2510.18855
    (IcePop), with a ratio for each token; by rows, Liu et al., "When Speed Kills Stability" (2025), https://richardli.xyz/rl-collapse.
    Arguments and errors are those of `truncated_importance`; a ratio that equals a bound is inside.

    Returns:
        Metrics: `rollout_weight` and `rollout_weight_square` of the factors, 0 where dropped; `rollout_dropped`, the share of
        decisions outside the bounds.
    """
    ratio, valid = _ratio(logprob_train, logprob_rollout, mask, level, (low, high), by="masked_importance"), mask.bool()
    keep = valid & (ratio >= low) & (ratio <= high)
    dropped = {"rollout_dropped": (valid & ~keep).float()}
    return Correction(torch.where(valid, ratio, 0.0), keep, {**_observed_weight(torch.where(keep, ratio, 0.0)), **dropped})


@takes_tensors
def rejection(
    logprob_train: Tensor,
    logprob_rollout: Tensor,
    mask: Tensor,
    *,
    level: Level,
    low: float,
    high: float,
    inverse: bool = False,
) -> Correction:
    """Drops what lies outside the bounds, as `masked_importance` does, and leaves the rest with weight 1.

    keep where low ≤ ρ ≤ high,   ρ = π_train(a) / π_rollout(a), or with `inverse` 1 / ρ

    verl's `rollout_rs` bounds the inverse, π_rollout / π_train: its `token_k1`, `seq_sum_k1` and `seq_mean_k1` with thresholds
    "low_high" are the levels "token", "sequence" and "geometric" with `inverse`, or without it the bounds 1 / high and 1 / low.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.
        level: what has one ratio.
        low: the lower bound, ≥ 0; itself inside.
        high: the upper bound, ≥ `low`; itself inside.
        inverse: whether the bounds are those of π_rollout / π_train.

    Returns:
        Metrics: `rollout_dropped`, the share of decisions outside the bounds.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: the bounds are not in order, or there is no such level.
    """
    over, under = (logprob_rollout, logprob_train) if inverse else (logprob_train, logprob_rollout)
    ratio = _ratio(over, under, mask, level, (low, high), by="rejection")
    valid = mask.bool()
    keep = valid & (ratio >= low) & (ratio <= high)
    return Correction(valid.to(ratio.dtype), keep, {"rollout_dropped": (valid & ~keep).float()})


@takes_tensors
def geometric_rejection(
    logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor, *, low: float, high: float, inverse: bool = False
) -> Correction:
    """Drops whole rows by the geometric mean of their ratios, which, unlike the product, does not grow with length.

    keep the row if low ≤ exp(meanₜ log ρₜ) ≤ high,   ρ = π_train(a) / π_rollout(a), or with `inverse` 1 / ρ

    Liu et al., "When Speed Kills Stability" (2025), part 3, https://richardli.xyz/rl-collapse-3. It is `rejection` at level
    "geometric".

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.
        low: the lower bound, ≥ 0; itself inside.
        high: the upper bound, ≥ `low`; itself inside.
        inverse: whether the bounds are those of π_rollout / π_train, as verl's are; see `rejection`.

    Returns:
        Weight 1 for all. Metrics: `rollout_dropped`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: the bounds are not in order.
    """
    return rejection(logprob_train, logprob_rollout, mask, level="geometric", low=low, high=high, inverse=inverse)


@takes_tensors
def divergence_rejection(
    logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor, *, criterion: Divergence, threshold: float
) -> Correction:
    """Drops decisions, or whole rows, that the trainer and the rollout engine disagree on too much, in either direction.

    keep where D ≤ threshold,   with d = log π_train(a) − log π_rollout(a):   k2 = ½ d²,   k3 = eᵈ − 1 − d

    D is that of a decision (`token_…`), or of a row Σₜ (`seq_sum_…`), the mean over t (`seq_mean_…`) or maxₜ (`seq_max_…`).
    Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html. Names and thresholds are those of verl's
    `rollout_rs`, see Liu et al., "When Speed Kills Stability" (2025), https://richardli.xyz/rl-collapse.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.
        criterion: what D is.
        threshold: the greatest D, ≥ 0; itself inside.

    Returns:
        Weight 1 for all; d is kept within ±20. Metrics: `rollout_dropped`, and the same by the name of the criterion,
        `rollout_dropped_token_k2`: the share of decisions that are dropped.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: there is no such criterion, or the threshold is out of range.
    """
    check_criterion(criterion, threshold, place="divergence_rejection({})")
    d = joint(logprob_train, logprob_rollout, mask, by="divergence_rejection").clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    found = 0.5 * d.square() if criterion.endswith("k2") else d.expm1() - d
    valid = mask.bool()
    if "sum" in criterion:
        found = found.sum(1, keepdim=True)
    elif "mean" in criterion:
        found = found.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)
    elif "max" in criterion:
        found = found.amax(1, keepdim=True)
    keep = valid & (found <= threshold)
    dropped = (valid & ~keep).float()
    return Correction(valid.to(d.dtype), keep, {"rollout_dropped": dropped, f"rollout_dropped_{criterion}": dropped})


def check_criterion(criterion: str, threshold: float, *, place: str) -> None:
    """Refuses a divergence that does not exist and a threshold below 0; `place` is the pattern of the names."""
    if criterion in ("token_k1", "seq_sum_k1", "seq_mean_k1"):
        remedy = "It bounds both sides of a ratio: use mode 'reject' with inverse, low, high, or geometric_low, geometric_high."
        raise ConfigError(place.format("criterion"), f"no divergence '{criterion}'", remedy)
    expect_choice(place.format("criterion"), criterion, get_args(Divergence))
    expect_range(place.format("threshold"), threshold, 0.0, float("inf"))


@takes_tensors
def veto(logprob_train: Tensor, logprob_rollout: Tensor, mask: Tensor, *, threshold: float) -> Correction:
    """Drops a row in which a single decision is all but impossible for the trainer.

    keep the row if minₜ ρₜ ≥ threshold

    The token veto of verl's rollout correction, see Liu et al., "When Speed Kills Stability" (2025), https://richardli.xyz/rl-collapse.

    Args:
        logprob_train: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, by the trainer before the update; a decision's elements are summed.
        logprob_rollout: the same shape, by the engine that sampled.
        mask: `[B, T]` bool.
        threshold: the smallest ratio allowed, in (0, 1], such as 10⁻⁴.

    Returns:
        Weight 1 for all. Metrics: `rollout_vetoed`, the share of decisions in dropped rows.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: the threshold is out of range.
    """
    expect_range("veto", threshold, 0.0, 1.0, open_low=True)
    ratio = joint(logprob_train, logprob_rollout, mask, by="veto").exp()
    valid = mask.bool()
    # Where masked the ratio is 1, and no threshold is above that.
    keep = valid & (ratio >= threshold).all(1, keepdim=True)
    return Correction(valid.to(ratio.dtype), keep, {"rollout_vetoed": (valid & ~keep).float()})


@takes_tensors
def self_normalised(
    correction: Correction, mask: Tensor, *, by_row: bool = False, all_reduce: AllReduce | None = None
) -> Correction:
    """Divides weights by their mean, so that a correction moves weight between decisions without changing its amount.

    wᵢ′ = wᵢ / mean(w)

    Hesterberg, "Weighted Average Importance Sampling and Defensive Mixture Distributions" (1995),
    doi:10.1080/00401706.1995.10484303. The mean goes over a whole batch and all ranks; that of a micro-batch would be another one,
    so do this before the batch is parted. It counts the weights of dropped decisions too.

    Args:
        correction: `[B, T]`.
        mask: `[B, T]` bool.
        by_row: whether each row counts once, as for weights by rows, instead of each decision.
        all_reduce: sums a tensor over ranks, called once on every rank; None if there is one rank.

    Returns:
        The correction with weights of mean 1; with weights 0 where all were.

    Raises:
        ShapeError: `mask` has another shape than the weights.
    """
    expect_shape("self_normalised(mask)", mask, correction.weight.shape)
    factor, count = Aggregation("seq-mean-token-mean" if by_row else "token-mean").factors(mask, torch.float64)
    sums = torch.stack([(factor * correction.weight).sum(), count])
    total, count = sums if all_reduce is None else all_reduce(sums)
    mean = torch.where(total > 0, total, 1.0) / count.clamp(min=1.0)
    return replace(correction, weight=(correction.weight / mean).to(correction.weight.dtype))


def _ratio(train: Tensor, rollout: Tensor, mask: Tensor, level: Level, bounds: tuple[float, float], *, by: str) -> Tensor:
    """The ratio that each decision has at a level, `[B, T]`."""
    check_bounds(level, *bounds, keys=f"{by}({{}})")
    log = joint(train, rollout, mask, by=by)
    if level != "token":
        total = log.sum(1, keepdim=True)
        log = (total if level == "sequence" else total / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(log)
    return log.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _observed_weight(weight: Tensor) -> dict[str, Tensor]:
    return {"rollout_weight": weight, "rollout_weight_square": weight.square()}


def check_bounds(level: str, low: float, high: float, *, keys: str) -> None:
    """Refuses a level that does not exist and bounds that contain nothing; `keys` is the pattern of the names: `rejection({})`."""
    if level not in get_args(Level):
        raise ConfigError(keys.format("level"), f"no level '{level}'", did_you_mean(level, get_args(Level)))
    if not 0.0 <= low <= high:
        raise ConfigError(keys.format("low"), f"expected 0 <= low <= high, found {low:g} and {high:g}")


def corrected(terms: Terms, correction: Correction) -> Terms:
    """A policy's loss times the factor of a correction; `policy_loss` among its metrics follows."""
    loss = terms.loss * correction.factor
    observed = {**terms.observed, **correction.observed, "policy_loss": loss.detach()}
    return Terms(loss, observed, terms.explained, {**terms.by_row, **correction.by_row})


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
    """What has one ratio of trainer to rollout: "token", each decision, with the least variance; "sequence", a row, by the product
    over its decisions, which is exact and grows with their number; "geometric", a row, by their geometric mean."""
    low: float = 0.0
    """The lower bound of the ratio, ≥ 0."""
    high: float = 2.0
    """The upper bound of the ratio; above it `mode` says whether it is cut to the bound or its decisions are dropped."""
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
        modes = ("truncate", "mask", "reject", "none")
        if self.mode not in modes:
            raise ConfigError("mode", f"no mode '{self.mode}'", did_you_mean(self.mode, modes))
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
            found = Correction(mask.to(at_least_float32(logprob_train).dtype), mask.bool())
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

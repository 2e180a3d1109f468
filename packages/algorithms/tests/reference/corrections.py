"""Corrections between rollout and trainer, and filters of rows, one decision at a time."""

from __future__ import annotations

import math
from typing import Any

from reference.terms import Mask, Nested, Rows, at, decided, leaves

Found = tuple[list[list[float]], list[list[bool]]]


def truncated_importance(
    logprob_train: Rows, logprob_rollout: Rows, mask: Mask, level: str = "token", low: float = 0.0, high: float = 2.0
) -> Found:
    """Weights within bounds; nothing dropped."""
    ratio = _ratios(logprob_train, logprob_rollout, mask, level)
    weight = [[min(max(x, low), high) if v else 0.0 for x, v in zip(r, m, strict=True)] for r, m in zip(ratio, mask, strict=True)]
    return weight, [list(row) for row in mask]


def masked_importance(
    logprob_train: Rows, logprob_rollout: Rows, mask: Mask, level: str = "token", low: float = 0.5, high: float = 5.0
) -> Found:
    """The ratios themselves; what lies outside the bounds is dropped."""
    ratio = _ratios(logprob_train, logprob_rollout, mask, level)
    weight = [[x if v else 0.0 for x, v in zip(r, m, strict=True)] for r, m in zip(ratio, mask, strict=True)]
    keep = [[v and low <= x <= high for x, v in zip(r, m, strict=True)] for r, m in zip(ratio, mask, strict=True)]
    return weight, keep


def rejection(
    logprob_train: Rows, logprob_rollout: Rows, mask: Mask, level: str, low: float, high: float, inverse: bool = False
) -> Found:
    """Weight 1; what lies outside the bounds is dropped, of π_train / π_rollout or of its inverse."""
    if inverse:
        logprob_train, logprob_rollout = logprob_rollout, logprob_train
    _, keep = masked_importance(logprob_train, logprob_rollout, mask, level, low, high)
    return _ones(mask), keep


def geometric_rejection(
    logprob_train: Rows, logprob_rollout: Rows, mask: Mask, low: float, high: float, inverse: bool = False
) -> Found:
    """`rejection` by the geometric mean of a row's ratios."""
    return rejection(logprob_train, logprob_rollout, mask, "geometric", low, high, inverse)


def divergence_rejection(logprob_train: Rows, logprob_rollout: Rows, mask: Mask, criterion: str, threshold: float) -> Found:
    """Weight 1; decisions, or rows, whose ½ d² or eᵈ − 1 − d is above the threshold are dropped."""
    keep: list[list[bool]] = []
    for train, rollout, valid in zip(logprob_train, logprob_rollout, mask, strict=True):
        d = [_bounded(_difference(p, q)) if v else 0.0 for p, q, v in zip(train, rollout, valid, strict=True)]
        each = [x * x / 2 if criterion.endswith("k2") else math.exp(x) - 1 - x for x in d]
        decided = [x for x, v in zip(each, valid, strict=True) if v] or [0.0]
        whole = {"sum": sum(decided), "mean": sum(decided) / len(decided), "max": max(decided)}
        of_row = criterion.split("_")[1] if criterion.startswith("seq") else ""
        keep.append([v and whole.get(of_row, x) <= threshold for x, v in zip(each, valid, strict=True)])
    return _ones(mask), keep


def veto(logprob_train: Rows, logprob_rollout: Rows, mask: Mask, threshold: float) -> Found:
    """Weight 1; rows with a ratio below the threshold are dropped."""
    keep: list[list[bool]] = []
    for train, rollout, valid in zip(logprob_train, logprob_rollout, mask, strict=True):
        bad = any(v and _difference(p, q) < math.log(threshold) for p, q, v in zip(train, rollout, valid, strict=True))
        keep.append([v and not bad for v in valid])
    return _ones(mask), keep


def self_normalised(weight: list[list[float]], mask: Mask, by_row: bool = False) -> list[list[float]]:
    """Weights divided by their mean over decisions, or over the means of rows."""
    rows = [[w for w, v in zip(row, valid, strict=True) if v] for row, valid in zip(weight, mask, strict=True)]
    counted = [sum(row) / len(row) for row in rows if row] if by_row else [w for row in rows for w in row]
    mean = sum(counted) / len(counted) if counted else 0.0
    return [[w / mean if mean > 0 else 0.0 for w in row] for row in weight]


def mismatch(logprob_train: Rows, logprob_rollout: Rows, mask: Mask) -> dict[str, list[list[float]]]:
    """k1, k3 and χ² of each decision."""
    result: dict[str, list[list[float]]] = {"rollout_kl": [], "rollout_k3": [], "rollout_chi2": []}
    for train, rollout, valid in zip(logprob_train, logprob_rollout, mask, strict=True):
        d = [_difference(p, q) if v else 0.0 for p, q, v in zip(train, rollout, valid, strict=True)]
        result["rollout_kl"].append([-x for x in d])
        result["rollout_k3"].append([math.exp(x) - 1 - x for x in map(_bounded, d)])
        result["rollout_chi2"].append([math.exp(x) ** 2 - 1 for x in map(_bounded, d)])
    return result


def perplexity(logprob_train: Rows, logprob_rollout: Rows, mask: Mask) -> dict[str, list[float]]:
    """The exponential of the mean negative log-probability of each row, by both, and how they differ."""
    result: dict[str, list[float]] = {}
    for train, rollout, valid in zip(logprob_train, logprob_rollout, mask, strict=True):
        n = sum(valid)
        a, b = (-sum(sum(leaves(x)) for x, v in zip(row, valid, strict=True) if v) / max(1, n) for row in (train, rollout))
        found = {"training_log_ppl": a, "rollout_log_ppl": b, "log_ppl_diff": a - b, "log_ppl_abs_diff": abs(a - b)}
        found |= {"training_ppl": math.exp(_bounded(a)), "rollout_ppl": math.exp(_bounded(b))}
        found |= {"ppl_ratio": math.exp(_bounded(a - b)), "rollout_chi2_seq": math.exp(_bounded(n * (b - a))) ** 2 - 1}
        for name, value in found.items():
            result.setdefault(name, []).append(value if n else 0.0)
    return result


def _difference(train: Any, rollout: Any) -> float:
    """The log-ratio of a decision: the sum over its elements."""
    return sum(0.0 if p == q == -math.inf else p - q for p, q in zip(leaves(train), leaves(rollout), strict=True))


def _bounded(log_ratio: float) -> float:
    return max(-20.0, min(20.0, log_ratio))


def _ones(mask: Mask) -> list[list[float]]:
    return [[1.0 if valid else 0.0 for valid in row] for row in mask]


def _ratios(logprob_train: Rows, logprob_rollout: Rows, mask: Mask, level: str) -> list[list[float]]:
    """The ratio that each decision has at a level."""
    result: list[list[float]] = []
    for train, rollout, valid in zip(logprob_train, logprob_rollout, mask, strict=True):
        d = [_difference(p, q) if v else 0.0 for p, q, v in zip(train, rollout, valid, strict=True)]
        if level == "sequence":
            d = [sum(d)] * len(d)
        elif level == "geometric":
            d = [sum(d) / max(1, sum(valid))] * len(d)
        result.append([math.exp(_bounded(x)) for x in d])
    return result


def dynamic_sampling(
    score: list[float], group: list[int], low: float | None = None, high: float | None = None, tolerance: float = 0.0
) -> list[bool]:
    """Whether the scores of a row's group differ, and their mean lies within the bounds."""
    keep = score_bounds(score, group, low, high)
    for i, name in enumerate(group):
        members = [s for s, g in zip(score, group, strict=True) if g == name]
        if max(members) - min(members) <= tolerance:
            keep[i] = False
    return keep


def score_bounds(score: list[float], group: list[int], low: float | None = None, high: float | None = None) -> list[bool]:
    """Whether the mean score of a row's group lies within the bounds."""
    keep: list[bool] = []
    for name in group:
        members = [s for s, g in zip(score, group, strict=True) if g == name]
        mean = sum(members) / len(members)
        keep.append((low is None or mean >= low) and (high is None or mean <= high))
    return keep


def overlong_filtering(mask: list[list[bool]], truncated: list[list[bool]]) -> list[list[bool]]:
    """The mask without the rows in which an unmasked decision was truncated."""
    result: list[list[bool]] = []
    for valid, cut in zip(mask, truncated, strict=True):
        overlong = any(v and c for v, c in zip(valid, cut, strict=True))
        result.append([v and not overlong for v in valid])
    return result


def opsm(logprob: Nested, logprob_old: Nested, advantage: Rows, mask: Mask, delta: float) -> Mask:
    """The mask without the bad decisions of rows whose mean log(π_old / π) is above δ."""
    result: Mask = []
    for b, columns in enumerate(decided(mask)):
        gaps = [sum(at(logprob_old, b, t)) - sum(at(logprob, b, t)) for t in columns]
        left = bool(gaps) and sum(gaps) / len(gaps) > delta
        result.append([valid and not (left and advantage[b][t] < 0) for t, valid in enumerate(mask[b])])
    return result

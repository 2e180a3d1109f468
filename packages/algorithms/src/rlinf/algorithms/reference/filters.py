"""Filters of rows, one row at a time."""

from __future__ import annotations

from rlinf.algorithms.reference.decisions import Mask, Nested, Rows, at, decided


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

"""Which groups are trained on: fresh enough, with a difference where that is asked for, and as many as are needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from rlinf.runners.training.versions import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response that was scored."""

    reward: float
    """What the trainer is given, the penalty of length included."""
    success: bool
    """Whether it is right."""
    tokens: int
    """How long it is."""
    finish: str
    """As `Completion.finish`."""
    text: str | None = None
    """What it says; None where the report carries no texts."""
    measured: Mapping[str, float] = field(default_factory=dict[str, float])
    """What else is known of it, by name; the means are logged as `rollout/<name>`."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What each part of the reward says of it, before its weight; mean and standard deviation are logged as `rollout/reward/<name>`
    and `rollout/reward/<name>_std`."""
    failure: str = ""
    """Why it failed, where something other than the policy did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """What is known of a group without its tokens."""

    group: int
    """Its number."""
    problem: int
    """The problem's place in its split."""
    responses: tuple[Response, ...]
    """One for each member."""
    oldest: int | None
    """The oldest weight version that wrote a token; None if there is no token."""
    prompt: str | None = None
    """What was asked; None where the report carries no texts."""
    answer: str = ""
    """What is right."""
    baseline: float | None = None
    """The reward of the likeliest response, with which the others are compared; None where none was written."""

    @property
    def tokens(self) -> int:
        """How long its responses are together."""
        return sum(response.tokens for response in self.responses)

    @property
    def varies(self) -> bool:
        """Whether its rewards differ, so that a comparison within the group teaches something."""
        return len({response.reward for response in self.responses}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What became of the groups of an iteration."""

    admitted: tuple[int, ...]
    """The groups to train on, ascending."""
    stale: int
    """How many were too old."""
    alike: int
    """How many of several responses had no difference, whether or not they are trained on."""


def admit(reports: Iterable[GroupReport], versions: Versions, *, max_lag: int, needed: int, must_vary: bool) -> Admission:
    """Chooses the groups to train on.

    Args:
        reports: all groups of the iteration so far.
        versions: those that the rollout was given.
        max_lag: how many updates old a token may be.
        needed: how many groups are wanted; the first ones by number are taken.
        must_vary: whether groups whose rewards are all equal are refused.
    """
    ordered = sorted(reports, key=attrgetter("group"))
    fresh = [report for report in ordered if versions.lag(report.oldest) <= max_lag]
    good = [report for report in fresh if report.varies or not must_vary]
    admitted = tuple(report.group for report in good[:needed])
    alike = sum(len(report.responses) > 1 and not report.varies for report in fresh)
    return Admission(admitted=admitted, stale=len(ordered) - len(fresh), alike=alike)


def wave_size(needed: int, admitted: int, drawn: int, *, batch: int) -> int:
    """How many groups to draw next: the missing ones, by the share that was admitted so far; at most a batch."""
    missing = needed - admitted
    # If none was admitted, the share is unknown, not 0.
    share = max(admitted, 1) / max(drawn, 1)
    return min(batch, math.ceil(missing / share))


def assign(tokens: Mapping[int, int], shares: int) -> Mapping[int, int]:
    """Which share trains on which group: as many groups in each, but for one, and nearly as many tokens.

    From the longest group to the shortest, each goes to the share with the fewest tokens that still has room. Graham, "Bounds on
    Multiprocessing Timing Anomalies" (1969).

    Args:
        tokens: of each group that was admitted.
        shares: how many.
    """
    least, more = divmod(len(tokens), shares)
    held = [[0, 0] for _ in range(shares)]  # tokens and groups of each share
    found: dict[int, int] = {}
    for group in sorted(tokens, key=lambda group: (-tokens[group], group)):
        # Only as many shares as the remainder may have one group more than the others.
        full = sum(groups > least for _, groups in held) >= more
        share = min((s for s in range(shares) if held[s][1] < least + (not full)), key=lambda s: (held[s][0], s))
        held[share][0] += tokens[group]
        held[share][1] += 1
        found[group] = share
    return found

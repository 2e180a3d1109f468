"""What scoring a batch gives: a number for every pair, whatever became of its verification."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlinf.core.errors import NonFiniteError, ShapeError
from rlinf.core.metrics import Metric, Statistic


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pair."""

    score: float | None
    """What the verifier said; None if it failed."""
    problem: str = ""
    """Why it failed."""
    timed_out: bool = False
    """Whether its time was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of a batch, and how scoring went."""

    values: list[float]
    """One for each pair, in order; always finite."""
    metrics: Mapping[str, Statistic]
    """`score`; `verifier_error` and `verifier_timeout`, the shares of pairs whose verifier crashed or ran out of time."""
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why a pair could not be verified, by its place in the batch."""


def finite(value: object) -> float:
    """A verifier's answer as a number.

    Raises:
        ValueError: it isn't a finite number.
    """
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, the verifier returned {value!r:.100}")
    return float(value)


def only(found: Sequence[float]) -> float:
    """The score of a reward that was given one pair.

    Raises:
        ShapeError: it returned none, or several.
    """
    if len(found) != 1:
        remedy = "Return a list as long as the list of completions."
        raise ShapeError("reward", f"expected one score for one completion, found {len(found)}", remedy)
    return found[0]


def checked_scores(scores: Scores, place: str, count: int) -> Scores:
    """The scores of a batch, if there is a finite number for each completion.

    Args:
        scores: what a reward says.
        place: the reward, for the message.
        count: how many completions there were.

    Raises:
        ShapeError: there are more or fewer.
        NonFiniteError: one is infinite or not a number; the message has its row.
    """
    if len(scores.values) != count:
        problem = f"expected {count} scores, one for each completion, found {len(scores.values)}"
        raise ShapeError(place, problem, "Return a list as long as the list of completions.")
    for row, value in enumerate(scores.values):
        if not math.isfinite(value):
            raise NonFiniteError(place, f"expected a finite score, found {value} in row {row}", "Mend the reward.")
    return scores


def tally(outcomes: Sequence[Outcome], *, failure_score: float) -> Scores:
    """The scores of a batch from what became of each pair.

    Args:
        outcomes: one for each pair.
        failure_score: the score of a pair that could not be verified.
    """
    values = [failure_score if outcome.score is None else outcome.score for outcome in outcomes]
    timeouts = sum(outcome.score is None and outcome.timed_out for outcome in outcomes)
    failures = {index: outcome.problem for index, outcome in enumerate(outcomes) if outcome.score is None}
    count = float(len(outcomes))
    metrics = {
        "score": Metric(math.fsum(values), count),
        "verifier_error": Metric(float(len(failures) - timeouts), count),
        "verifier_timeout": Metric(float(timeouts), count),
    }
    return Scores(values=values, metrics=metrics, failures=failures)


def expect_pairs(place: str, completions: Sequence[str], answers: Sequence[str]) -> None:
    """Refuses completions and answers that don't go together.

    Raises:
        ShapeError: one is a single text instead of a list, or their numbers disagree.
    """
    for name, given in (("completions", completions), ("answers", answers)):
        if isinstance(given, str):
            raise ShapeError(f"{place}({name})", "expected a list of texts, found one text", "Wrap it in a list.")
    if len(completions) != len(answers):
        raise ShapeError(f"{place}(answers)", f"expected {len(completions)}, one for each completion, found {len(answers)}")

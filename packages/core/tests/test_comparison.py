"""Two policies on the same episodes: the paired difference and how sure it is."""

from __future__ import annotations

import math

import pytest

from rlinf.core.errors import RLinfError
from rlinf.core.evaluation import Difference, EvalReport, ProblemProtocol, ProblemResult


def test_a_difference_of_rates_by_hand():
    """3 better and 1 worse of 10: (3 − 1) / 12 ± 1.96 √(5 − 4 / 12) / 12, of Agresti and Min."""
    found = Difference.of([(1, 0)] * 3 + [(0, 1)] + [(1, 1)] * 4 + [(0, 0)] * 2)
    assert (found.n, found.better, found.worse, found.mean) == (10, 3, 1, pytest.approx(0.2))
    assert (found.low, found.high) == pytest.approx((-0.18618, 0.51951), abs=1e-5)
    assert found.told(rate=True) == "+20.0% [-18.6%, +52.0%] of 10 pairs: better in 3, worse in 1"
    interval = pytest.approx([-0.18618, 0.51951], abs=1e-5)
    assert found.to_dict() == {"n": 10, "better": 3, "worse": 1, "mean": pytest.approx(0.2), "interval_95": interval}


def test_what_never_differs_is_not_known_for_sure_and_the_other_way_round_changes_the_sign():
    same = Difference.of([(1, 1)] * 20)
    assert (same.mean, same.low, same.high) == (0, -same.high, pytest.approx(1.96 / 22))
    pairs = [(1.0, 0.0)] * 7 + [(0.0, 1.0)] * 2 + [(1.0, 1.0)] * 5
    one, other = Difference.of(pairs), Difference.of((b, a) for a, b in pairs)
    assert (other.mean, other.low, other.high) == pytest.approx((-one.mean, -one.high, -one.low))
    assert (other.better, other.worse) == (one.worse, one.better)


def test_a_difference_of_returns_is_students():
    found = Difference.of([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert found.told(rate=False) == "+2.00 [-0.48, +4.48] of 3 pairs: better in 3, worse in 0"
    alone = Difference.of([(2.0, 1.5)])
    assert (alone.mean, alone.told(rate=False)) == (0.5, "+0.50 of 1 pairs: better in 1, worse in 0")
    assert math.isnan(Difference.of([]).mean)
    assert alone.to_dict() == {"n": 1, "better": 1, "worse": 0, "mean": 0.5, "interval_95": None}
    assert Difference.of([]).to_dict() == {"n": 0, "better": 0, "worse": 0, "mean": None, "interval_95": None}


def report(*rewards, samples=1):
    protocol = ProblemProtocol(
        data="mine", problems=tuple(range(len(rewards))), samples=samples, pass_k=(1,), sampling={}, reward="exact"
    )
    results = [
        ProblemResult(
            problem=n, success=(bool(r),) * samples, reward=(r,) * samples, tokens=(1,) * samples, finish=("stop",) * samples
        )
        for n, r in enumerate(rewards)
    ]
    # In any order: a report has that of its protocol.
    return EvalReport(protocol=protocol, results=tuple(reversed(results)))


def test_reports_are_compared_entry_by_entry():
    found = report(1.0, 0.0, 1.0, 1.0).compared(report(0.0, 1.0, 1.0, 0.0))
    assert (found.n, found.better, found.worse, found.mean) == (4, 2, 1, 0.25)


def test_reports_of_two_protocols_are_refused():
    with pytest.raises(RLinfError, match=r"expected two reports of one protocol, found \w{12} and \w{12}\. Measure"):
        report(1.0).compared(report(1.0, samples=2))

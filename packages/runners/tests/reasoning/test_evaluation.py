from itertools import combinations

import pytest

from rlinf.runners.reasoning.admission import GroupReport, Response
from rlinf.runners.reasoning.evaluation import interval, pass_at_k, summarise


@pytest.mark.parametrize(("samples", "right"), [(5, 0), (5, 2), (5, 5), (4, 1)])
def test_pass_at_k_counts_the_subsets_that_hold_a_right_one(samples: int, right: int) -> None:
    for k in range(1, samples + 1):
        subsets = list(combinations(range(samples), k))
        solved = sum(any(member < right for member in subset) for subset in subsets)
        assert pass_at_k(samples, right, k) == pytest.approx(solved / len(subsets))


def report(number: int, *right: bool) -> GroupReport:
    responses = tuple(Response(reward=float(r), success=r, tokens=4 + r, finish="stop" if r else "length") for r in right)
    return GroupReport(group=number, problem=number, responses=responses, oldest=0)


def test_a_summary_by_hand() -> None:
    found = summarise([report(0, True, False), report(1, False, False), report(2, True, True)], (1, 2))
    assert found["eval/accuracy"] == found["eval/pass@1"] == pytest.approx(0.5)
    assert found["eval/pass@2"] == pytest.approx(2 / 3)
    assert found["eval/response_length"] == pytest.approx(4.5)
    assert found["eval/truncated"] == pytest.approx(0.5)


def test_the_interval_is_that_of_problems_and_not_of_responses() -> None:
    low, high = interval(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)

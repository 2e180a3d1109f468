import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.metrics import credit_metrics, group_metrics
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric, means, merge

SCORE, GROUP = torch.tensor([1.0, 0.1, 5.0, 0.1, math.nan, 2.0, 0.1]), torch.tensor([3, 9, 3, 9, 4, 8, 9])
VALID = torch.tensor([True, True, True, True, False, True, True])


def test_groups_by_hand():
    """Group 3 has 1 and 5; group 9 agrees on 0.1; group 8 has one row; the only row of group 4 does not count."""
    found = group_metrics(SCORE, GROUP, valid=VALID)
    assert found["dead_group_fraction"] == Metric(2.0, 3.0)
    assert found["group_size"] == Metric(6.0, 3.0)
    assert found["group_std"] == Metric(2.0, 3.0)
    assert found["score_mean"].mean == pytest.approx(8.3 / 6)


def test_credit_by_hand():
    advantage = torch.tensor([[1.0, -2.0, math.nan], [0.0, 4.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    found = means(credit_metrics(advantage, mask))
    assert found == {
        "advantage_mean": 0.75,
        "advantage_abs": 1.75,
        "advantage_square": 5.25,
        "advantage_positive": 0.5,
        "advantage_zero": 0.25,
    }
    target = torch.tensor([[1.0, 2.0, math.nan], [3.0, 6.0, math.inf]])
    value = torch.tensor([[1.0, 2.0, math.nan, 7.0], [3.0, 4.0, math.inf, 7.0]])
    found = means(credit_metrics(advantage, mask, target=target, value=value))
    assert found["return_mean"] == 3.0
    # error 0, 0, 0, 2: squares about the mean 3; target 1, 2, 3, 6: squares 14
    assert found["explained_variance"] == pytest.approx(1 - 3 / 14)
    assert "explained_variance" not in credit_metrics(advantage, mask, target=target)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_any_split_adds_up_to_the_specification(seed, rows, columns, partly):
    torch.manual_seed(seed)
    advantage, target = torch.randn(2, rows, columns)
    value = torch.randn(rows, columns)
    mask = torch.rand(rows, columns) < 0.7
    advantage[torch.rand(rows, columns) < 0.2] = 0.0
    score, group = advantage[:, 0].contiguous(), torch.randint(0, 3, (rows,))
    valid = mask[:, 0] if partly else None
    expected = reference.credit_metrics(advantage.tolist(), mask.tolist(), target=target.tolist(), value=value.tolist())
    split = zip(*(x.split(2) for x in (advantage, mask, target, value)), strict=True)
    parts = [[credit_metrics(a, m, target=t, value=v) for a, m, t, v in split]]
    expected_groups = reference.group_metrics(score.tolist(), group.tolist(), valid=valid.tolist() if partly else None)
    by_group = [group == name for name in range(3)]
    parts.append([group_metrics(score[k], group[k], valid=valid[k] if partly else None) for k in by_group])
    for found, wanted in zip(parts, (expected, expected_groups), strict=True):
        if rows:
            assert means(merge(found)) == pytest.approx(wanted, rel=1e-5, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_metrics(SCORE, GROUP[:2]), r"group_metrics\(group\)"),
        (lambda: group_metrics(SCORE, GROUP, valid=VALID[:2]), r"group_metrics\(valid\)"),
        (lambda: credit_metrics(SCORE[None], VALID), r"credit_metrics\(mask\)"),
        (lambda: credit_metrics(SCORE[None], VALID[None], target=SCORE), r"credit_metrics\(target\)"),
        (lambda: credit_metrics(SCORE[None], VALID[None], target=SCORE[None], value=SCORE), r"credit_metrics\(value\)"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, message):
    with pytest.raises(ShapeError, match=message):
        call()

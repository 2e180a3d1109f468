import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.score import at_last_decision, joint, row_score, to_decisions
from rlinf.core.errors import ShapeError

MASK = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])


def test_by_hand():
    reward = torch.tensor([[1.0, math.nan, 2.0, math.inf], [math.nan] * 4, [1.0, 1.0, 1.0, 0.5]])
    assert row_score(reward, MASK).tolist() == [3.0, 0.0, 3.5]
    score = torch.tensor([5.0, math.nan, 7.0])
    assert at_last_decision(score, MASK).tolist() == [[0.0, 0.0, 5.0, 0.0], [0.0] * 4, [0.0, 0.0, 0.0, 7.0]]
    assert to_decisions(score, MASK).tolist() == [[5.0, 0.0, 5.0, 0.0], [0.0] * 4, [7.0] * 4]


def test_a_decision_of_many_elements_has_the_sum_of_their_log_probabilities():
    by_step = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert joint(by_step).tolist() == [[3.0, 7.0]]
    assert joint(by_step[None]).tolist() == [[10.0]]
    assert joint(by_step[0]).tolist() == by_step[0].tolist()


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 4), st.integers(1, 6), FLOATS)
def test_equals_its_specification(seed, rows, columns, dtype):
    torch.manual_seed(seed)
    reward, mask = torch.randn(rows, columns).to(dtype), torch.rand(rows, columns) < 0.6
    score = torch.randn(rows).to(dtype)
    elements = torch.randn(rows, columns, 2, 3).to(dtype)
    cases = [
        (row_score(reward, mask), reference.row_score(reward.tolist(), mask.tolist())),
        (at_last_decision(score, mask), reference.at_last_decision(score.tolist(), mask.tolist())),
        (to_decisions(score, mask), reference.to_decisions(score.tolist(), mask.tolist())),
        (joint(elements), reference.joint(elements.tolist())),
    ]
    for found, expected in cases:
        torch.testing.assert_close(
            found.double(), torch.tensor(expected, dtype=torch.float64).reshape(found.shape), rtol=1e-5, atol=1e-5
        )
    assert all(
        x.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) for x in (cases[0][0], cases[1][0], cases[3][0])
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row_score(torch.ones(2, 3), MASK), r"row_score\(mask\)"),
        (lambda: at_last_decision(torch.ones(2), MASK), r"at_last_decision\(score\)"),
        (lambda: to_decisions(torch.ones(2), MASK), r"to_decisions\(advantage\)"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, message):
    with pytest.raises(ShapeError, match=message):
        call()

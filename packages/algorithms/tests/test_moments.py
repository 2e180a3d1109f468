import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.statistics import divisor, moments, root
from rlinf.core.errors import ShapeError

X = torch.tensor([[1.0, 2.0, math.nan], [3.0, 6.0, math.inf]])
MASK = torch.tensor([[True, True, False], [True, True, False]])


def test_fewer_than_two_entries_have_no_variance():
    one = torch.tensor([[False, True, False], [False] * 3])
    assert [m.item() for m in moments(X, one, unbiased=True)] == [2.0, 0.0]
    assert [m.item() for m in moments(X, one & ~MASK, unbiased=True)] == [0.0, 0.0]


def test_what_a_sum_of_squares_is_divided_by():
    count = torch.tensor([0, 1, 2, 5])
    assert divisor(count, unbiased=True).tolist() == [1, 1, 1, 4] == [reference.divisor(n, unbiased=True) for n in count.tolist()]
    assert divisor(count, unbiased=False).tolist() == [1, 1, 2, 5] == [reference.divisor(n, unbiased=False) for n in count.tolist()]


@settings(max_examples=40)
@given(st.integers(0, 10_000), FLOATS, st.booleans(), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_equals_its_specification(seed, dtype, unbiased, share):
    torch.manual_seed(seed)
    x, mask = torch.randn(3, 4).to(dtype), torch.rand(3, 4) < share
    expected = reference.moments(x.tolist(), mask.tolist(), unbiased=unbiased)
    x[~mask] = math.nan
    before = x.clone()
    mean, deviation = moments(x, mask, unbiased=unbiased)
    torch.testing.assert_close(torch.stack([mean, deviation]), torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0))


def test_moments_of_two_ranks():
    mean, deviation = moments(X, MASK, lambda x: x * 2, unbiased=True)
    torch.testing.assert_close(torch.stack([mean, deviation]), torch.tensor([3.0, 2.0], dtype=torch.float64))


def test_a_deviation_of_zero_has_no_gradient():
    variance = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
    found = root(variance)
    assert found.tolist() == [reference.root(v) for v in variance.tolist()] == [0.0, 2.0, 3.0]
    found.sum().backward()
    torch.testing.assert_close(variance.grad, torch.tensor([0.0, 1 / 4, 1 / 6]))


def test_a_wrong_mask_is_named():
    with pytest.raises(ShapeError, match=r"moments\(mask\)"):
        moments(X, MASK[:1])

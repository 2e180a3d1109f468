import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.masked import divisor, masked_mean, masked_var, root
from rlinf.algorithms.advantages.moments import moments
from rlinf.core.errors import ShapeError

X = torch.tensor([[1.0, 2.0, math.nan], [3.0, 6.0, math.inf]])
MASK = torch.tensor([[True, True, False], [True, True, False]])


def test_by_hand():
    # 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9 = 14
    assert masked_mean(X, MASK) == 3.0
    torch.testing.assert_close(masked_var(X, MASK), torch.tensor(14 / 3))
    torch.testing.assert_close(masked_var(X, MASK, unbiased=False), torch.tensor(3.5))
    torch.testing.assert_close(masked_mean(X, MASK, dim=0), torch.tensor([2.0, 4.0, 0.0]))
    torch.testing.assert_close(masked_mean(X, MASK, dim=1), torch.tensor([1.5, 4.5]))
    torch.testing.assert_close(masked_var(X, MASK, dim=0), torch.tensor([2.0, 8.0, 0.0]))
    torch.testing.assert_close(masked_var(X, MASK, dim=1, unbiased=False), torch.tensor([0.25, 2.25]))


def test_fewer_than_two_entries_have_no_variance():
    one = torch.tensor([[False, True, False], [False] * 3])
    assert masked_var(X, one) == 0.0
    assert masked_var(X, ~MASK & one) == 0.0
    assert masked_mean(X, ~MASK & one) == 0.0
    assert [m.item() for m in moments(X, one, unbiased=True)] == [2.0, 0.0]
    assert [m.item() for m in moments(X, one & ~MASK, unbiased=True)] == [0.0, 0.0]


def test_what_a_sum_of_squares_is_divided_by():
    count = torch.tensor([0, 1, 2, 5])
    assert divisor(count, unbiased=True).tolist() == [1, 1, 1, 4] == [reference.divisor(n, unbiased=True) for n in count.tolist()]
    assert divisor(count, unbiased=False).tolist() == [1, 1, 2, 5] == [reference.divisor(n, unbiased=False) for n in count.tolist()]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
)
def test_equals_its_specification(seed, dtype, dim, unbiased, share):
    torch.manual_seed(seed)
    x, mask = torch.randn(3, 4).to(dtype), torch.rand(3, 4) < share
    expected = (
        reference.masked_mean(x.tolist(), mask.tolist(), dim=dim),
        reference.masked_var(x.tolist(), mask.tolist(), dim=dim, unbiased=unbiased),
    )
    x[~mask] = math.nan
    before = x.clone()
    found = masked_mean(x, mask, dim=dim), masked_var(x, mask, dim=dim, unbiased=unbiased)
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(one.double(), torch.tensor(two, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    mean, deviation = moments(x, mask, unbiased=unbiased)
    expected = reference.moments(x.tolist(), mask.tolist(), unbiased=unbiased)
    torch.testing.assert_close(torch.stack([mean, deviation]), torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0))


def test_moments_of_two_ranks():
    mean, deviation = moments(X, MASK, lambda x: x * 2, unbiased=True)
    torch.testing.assert_close(torch.stack([mean, deviation]), torch.tensor([3.0, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_gradients_agree_with_finite_differences_and_garbage_has_none(dim):
    x = torch.tensor([[1.0, 2.0, 0.5], [3.0, 6.0, -1.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: (masked_mean(y, MASK, dim=dim), masked_var(y, MASK, dim=dim)), [x])
    y = X.clone().requires_grad_()
    (masked_mean(y, MASK, dim=dim).sum() + masked_var(y, MASK, dim=dim).sum()).backward()
    assert y.grad.isfinite().all()


@pytest.mark.parametrize("function", [masked_mean, masked_var, moments])
def test_a_wrong_mask_is_named(function):
    with pytest.raises(ShapeError, match=rf"{function.__name__}\(mask\)"):
        function(X, MASK[:1])


def test_a_deviation_of_zero_has_no_gradient():
    variance = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
    found = root(variance)
    assert found.tolist() == [reference.root(v) for v in variance.tolist()] == [0.0, 2.0, 3.0]
    found.sum().backward()
    torch.testing.assert_close(variance.grad, torch.tensor([0.0, 1 / 4, 1 / 6]))

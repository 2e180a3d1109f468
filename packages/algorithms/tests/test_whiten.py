import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.statistics import whiten
from rlinf.core.errors import ConfigError, ShapeError


def test_by_hand():
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    x = torch.tensor([[1.0, 2.0, 99.0], [3.0, 6.0, -99.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    expected = torch.tensor([[-2.0, -1.0, 0.0], [0.0, 3.0, 0.0]]) / 3.5**0.5
    torch.testing.assert_close(whiten(x, mask), expected)
    torch.testing.assert_close(whiten(x, mask, unbiased=True), expected * 0.75**0.5)
    torch.testing.assert_close(whiten(x, mask, shift_mean=False), torch.where(mask, expected + 3.0, 0.0))
    torch.testing.assert_close(whiten(x, mask, eps=1.0), expected * 3.5**0.5 / (3.5**0.5 + 1.0))


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    FLOATS,
    st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    st.fixed_dictionaries({"shift_mean": st.booleans(), "unbiased": st.booleans(), "eps": st.sampled_from([1e-8, 0.1])}),
)
def test_equals_its_specification(seed, dtype, share, options):
    torch.manual_seed(seed)
    x, mask = (torch.randn(3, 5, dtype=torch.float64) + 2.0).to(dtype), torch.rand(3, 5) < share
    x[~mask] = math.nan
    before = x.clone()
    found = whiten(x, mask, **options)
    expected = torch.tensor(reference.whiten(x.tolist(), mask.tolist(), **options), dtype=torch.float64)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0))


def test_an_epsilon_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"whiten\(eps\)"):
        whiten(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), eps=0.0)


def test_one_value_becomes_zero():
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert torch.equal(whiten(torch.full((2, 3), 0.1), mask), torch.zeros(2, 3))
    assert torch.equal(whiten(torch.full((2, 3), 0.1), ~mask), torch.zeros(2, 3))


def test_a_large_mean_costs_no_precision():
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(whiten(x + 4096.0, mask), whiten(x, mask))


def test_masked_garbage_stays_out():
    x = torch.tensor([[1.0, float("nan")]])
    assert torch.equal(whiten(x, torch.tensor([[True, False]])), torch.zeros(1, 2))


def test_all_reduce_is_called_twice_whatever_the_mask():
    calls = []
    whiten(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool), lambda x: calls.append(x) or x)
    assert len(calls) == 2


def test_wrong_mask():
    with pytest.raises(ShapeError, match=r"whiten\(mask\)"):
        whiten(torch.ones(1, 2), torch.ones(1, 3, dtype=torch.bool))

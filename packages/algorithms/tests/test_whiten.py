import pytest
import torch

from rlinf.algorithms import whiten
from rlinf.core.errors import ShapeError


def test_by_hand():
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    x = torch.tensor([[1.0, 2.0, 99.0], [3.0, 6.0, -99.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    expected = torch.tensor([[-2.0, -1.0, 0.0], [0.0, 3.0, 0.0]]) / 3.5**0.5
    torch.testing.assert_close(whiten(x, mask), expected)


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

import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.ratio import at_granularity
from rlinf.core.errors import ConfigError, ShapeError

LEVELS = ["token_level", "action_level", "chunk_level"]
X = torch.arange(1.0, 13.0).reshape(1, 2, 2, 3)


@pytest.mark.parametrize(
    ("level", "expected"),
    [("token_level", X.tolist()), ("action_level", [[[6.0, 15.0], [24.0, 33.0]]]), ("chunk_level", [[21.0, 57.0]])],
)
def test_by_hand(level, expected):
    assert at_granularity(X, level).tolist() == expected


def test_steps_that_were_not_made_add_nothing():
    executed = torch.tensor([[[True, False], [False, True]]])
    assert at_granularity(X, "chunk_level", executed).tolist() == [[6.0, 33.0]]
    assert at_granularity(X, "action_level", executed).tolist() == [[[6.0, 0.0], [0.0, 33.0]]]
    assert at_granularity(X, "token_level", executed)[0, 0].tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    garbage = torch.where(executed[..., None], X, torch.nan).requires_grad_()
    total = at_granularity(garbage, "chunk_level", executed)
    total.sum().backward()
    assert total.tolist() == [[6.0, 33.0]]
    assert torch.equal(garbage.grad, executed[..., None].float().expand_as(X))


@settings(max_examples=40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    st.integers(2, 4),
    st.sampled_from(LEVELS),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_equals_the_reference(shape, axes, level, with_executed, seed):
    random = np.random.default_rng(seed)
    x = torch.tensor(random.normal(size=shape[:axes]))
    executed = torch.tensor(random.random(shape[:3]) < 0.6) if with_executed and axes > 2 else None
    before = x.clone()
    found = at_granularity(x, level, executed)
    expected = reference.at_granularity(x.tolist(), level, None if executed is None else executed.tolist())
    np.testing.assert_allclose(found, np.array(expected), atol=1e-12)
    assert torch.equal(x, before)


def test_the_ratio_of_a_chunk_is_the_product_of_those_of_its_parts():
    log_ratio = 0.1 * torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = log_ratio.exp()
    torch.testing.assert_close(at_granularity(log_ratio, "chunk_level").exp(), parts.prod(3).prod(2))
    torch.testing.assert_close(at_granularity(log_ratio, "action_level").exp(), parts.prod(3))


def test_what_is_coarse_stays():
    x = torch.randn(2, 3)
    for level in LEVELS:
        assert torch.equal(at_granularity(x, level), x)
    steps = torch.randn(2, 3, 4)
    assert torch.equal(at_granularity(steps, "action_level"), steps)


def test_half_precision_is_summed_in_single():
    x = torch.ones(1, 1, 1000, dtype=torch.bfloat16)
    found = at_granularity(x, "chunk_level")
    assert (found.item(), found.dtype) == (1000.0, torch.float32)
    assert at_granularity(x, "token_level").dtype == torch.float32


def test_gradients():
    x = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    executed = torch.tensor([[[True, False], [True, True]]])
    for level, e in itertools.product(LEVELS, (None, executed)):
        assert torch.autograd.gradcheck(lambda y, level=level, e=e: at_granularity(y, level, e), [x])


@pytest.mark.parametrize(
    ("x", "level", "executed", "error", "message"),
    [
        (torch.zeros(2), "token_level", None, ShapeError, r"at_granularity\(x\): expected \[B, T\]"),
        (torch.zeros(1, 1, 1, 1, 1), "token_level", None, ShapeError, r"at_granularity\(x\): expected \[B, T\]"),
        (torch.zeros(2, 2), "chunk_leval", None, ConfigError, r"Did you mean 'chunk_level'"),
        (torch.zeros(2, 2, 3), "chunk_level", torch.ones(2, 2), ShapeError, r"at_granularity\(executed\): expected shape"),
        (torch.zeros(2, 2), "chunk_level", torch.ones(2, 2), ShapeError, r"expected None where x has no steps"),
    ],
)
def test_what_is_wrong_is_named(x, level, executed, error, message):
    with pytest.raises(error, match=message):
        at_granularity(x, level, executed)

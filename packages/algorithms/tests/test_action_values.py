import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.off_policy import peng_q_lambda, q_lambda, retrace
from rlinf.algorithms.advantages.returns import lambda_returns
from rlinf.core.errors import ConfigError, ShapeError

REWARD = torch.tensor([[1.0, 2.0, 3.0]])
Q = torch.tensor([[0.5, 1.0, 2.0]])
VALUE = torch.tensor([[0.0, 1.0, 1.5, 4.0]])
NO = torch.zeros(1, 3, dtype=torch.bool)
RATIO = torch.tensor([[9.0, 0.5, 2.0]]).log()
"""That of the first decision has no part in its return."""


def test_retrace_by_hand():
    """γ 0.5, λ 0.8: δ = (1 + 0.5 − 0.5, 2 + 0.75 − 1, 3 + 2 − 2) = (1, 1.75, 3), c₂ = 0.8 · 0.5, c₃ = 0.8 · 1.

    G₃ = 2 + 3 = 5, G₂ = 1 + 1.75 + 0.5 · 0.8 · 3 = 3.95, G₁ = 0.5 + 1 + 0.5 · 0.4 · 2.95 = 2.09.
    """
    found = retrace(REWARD, Q, VALUE, NO, NO, RATIO, gamma=0.5, lam=0.8)
    torch.testing.assert_close(found, torch.tensor([[2.09, 3.95, 5.0]]))


def test_q_lambda_by_hand():
    """Without the ratio: G₁ = 0.5 + 1 + 0.5 · 0.8 · 2.95 = 2.68."""
    found = q_lambda(REWARD, Q, VALUE, NO, NO, gamma=0.5, lam=0.8)
    torch.testing.assert_close(found, torch.tensor([[2.68, 3.95, 5.0]]))


def test_pengs_q_lambda_by_hand():
    """G₃ = 3 + 0.5 · 4 = 5, G₂ = 2 + 0.5 (0.2 · 1.5 + 0.8 · 5) = 4.15, G₁ = 1 + 0.5 (0.2 · 1 + 0.8 · 4.15) = 2.76."""
    found = peng_q_lambda(REWARD, VALUE, NO, NO, gamma=0.5, lam=0.8)
    torch.testing.assert_close(found, torch.tensor([[2.76, 4.15, 5.0]]))


def test_an_end_stops_the_trace_and_only_a_truncation_bootstraps():
    second = torch.tensor([[False, True, False]])
    terminated = retrace(REWARD, Q, VALUE, second, NO, RATIO, gamma=0.5)
    torch.testing.assert_close(terminated, torch.tensor([[1.0 + 0.5 + 0.5 * 0.5 * 1.0, 2.0, 5.0]]))
    truncated = retrace(REWARD, Q, VALUE, NO, second, RATIO, gamma=0.5)
    torch.testing.assert_close(truncated, torch.tensor([[1.0 + 0.5 + 0.5 * 0.5 * 1.75, 2.75, 5.0]]))


def test_masked_columns_are_crossed():
    """A column that nobody decided, full of garbage, changes nothing."""

    def wide(x, garbage):
        return torch.cat([x[:, :1], torch.full((1, 1), garbage, dtype=x.dtype), x[:, 1:]], 1)

    mask = torch.tensor([[True, False, True, True]])
    found = retrace(
        wide(REWARD, math.nan),
        wide(Q, math.nan),
        wide(VALUE, math.nan),
        wide(NO, True),
        wide(NO, True),
        wide(RATIO, math.nan),
        gamma=0.5,
        lam=0.8,
        mask=mask,
    )
    torch.testing.assert_close(found, torch.tensor([[2.09, 0.0, 3.95, 5.0]]))


@st.composite
def episodes(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 6)))
    dtype = draw(FLOATS)
    mask = torch.rand(shape) < draw(st.sampled_from([0.0, 0.6, 1.0])) if draw(st.booleans()) else None
    reward, action_value, log_ratio = (torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(3))
    value = torch.randn(shape[0], shape[1] + 1, dtype=torch.float64).to(dtype)
    if mask is not None:
        for x in (reward, action_value, log_ratio):
            x[~mask] = math.nan
    ends = [torch.rand(shape) < 0.2 for _ in range(2)]
    factors = [
        torch.rand(shape, dtype=torch.float64) if draw(st.booleans()) else draw(st.sampled_from([0.0, 0.7, 1.0])) for _ in range(2)
    ]
    later = torch.randn(shape, dtype=torch.float64).to(dtype) if draw(st.booleans()) else None
    return (
        reward,
        action_value,
        value,
        *ends,
        log_ratio,
        {"gamma": factors[0], "lam": factors[1], "mask": mask, "value_next": later},
    )


def plain(x):
    return x.tolist() if isinstance(x, torch.Tensor) else x


@settings(max_examples=60)
@given(episodes())
def test_equal_their_specifications(x):
    reward, action_value, value, terminated, truncated, log_ratio, options = x
    slow_options = {name: plain(option) for name, option in options.items()}
    for ours, theirs, arguments in (
        (retrace, reference.retrace, (reward, action_value, value, terminated, truncated, log_ratio)),
        (q_lambda, reference.q_lambda, (reward, action_value, value, terminated, truncated)),
        (peng_q_lambda, reference.peng_q_lambda, (reward, value, terminated, truncated)),
    ):
        before = [a.clone() for a in arguments]
        found = ours(*arguments, **options)
        expected = torch.tensor(theirs(*(a.tolist() for a in arguments), **slow_options), dtype=torch.float64)
        assert found.dtype == (torch.float64 if reward.dtype == torch.float64 else torch.float32)
        tolerance = 1e-9 if reward.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
        for a, b in zip(arguments, before, strict=True):
            assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_without_a_trace_only_the_next_value_counts():
    one_step = REWARD + 0.5 * VALUE[:, 1:]
    for found in (
        retrace(REWARD, Q, VALUE, NO, NO, RATIO, gamma=0.5, lam=0.0),
        q_lambda(REWARD, Q, VALUE, NO, NO, gamma=0.5, lam=0.0),
        peng_q_lambda(REWARD, VALUE, NO, NO, gamma=0.5, lam=0.0),
    ):
        torch.testing.assert_close(found, one_step)


def test_on_policy_with_action_values_that_are_the_state_values_all_are_lambda_returns():
    same = VALUE[:, :-1]
    expected = lambda_returns(REWARD, VALUE, NO, NO, gamma=0.5, lam=0.8)
    torch.testing.assert_close(retrace(REWARD, same, VALUE, NO, NO, 0 * RATIO, gamma=0.5, lam=0.8), expected)
    torch.testing.assert_close(q_lambda(REWARD, same, VALUE, NO, NO, gamma=0.5, lam=0.8), expected)


def test_what_neither_policy_does_cuts_the_trace():
    never = torch.full((1, 3), -math.inf)
    torch.testing.assert_close(retrace(REWARD, Q, VALUE, NO, NO, never, gamma=0.5), REWARD + 0.5 * VALUE[:, 1:])
    often = torch.full((1, 3), math.inf)
    torch.testing.assert_close(
        retrace(REWARD, Q, VALUE, NO, NO, often, gamma=0.5), q_lambda(REWARD, Q, VALUE, NO, NO, gamma=0.5, lam=1.0)
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"gamma": 1.5}, ConfigError, r"retrace\(gamma\)"),
        ({"lam": -0.1}, ConfigError, r"retrace\(lam\)"),
        ({"action_value": VALUE}, ShapeError, r"retrace\(action_value\)"),
        ({"log_ratio": VALUE}, ShapeError, r"retrace\(log_ratio\)"),
        ({"value": Q}, ShapeError, r"retrace\(value\)"),
    ],
)
def test_what_is_wrong_is_named(changes, error, message):
    arguments = {
        "reward": REWARD,
        "action_value": Q,
        "value": VALUE,
        "terminated": NO,
        "truncated": NO,
        "log_ratio": RATIO,
        "gamma": 0.5,
    }
    with pytest.raises(error, match=message):
        retrace(**(arguments | changes))

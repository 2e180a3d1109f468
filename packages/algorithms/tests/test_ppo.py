import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, expect_same

from rlinf.algorithms.losses.policy.ppo import DAPO, PPOClip, ppo_clip
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import LOSSES

ONE = torch.ones(1, 1, dtype=torch.bool)


def clip_at(ratio: float, advantage: float, **bounds):
    logprob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3} | bounds
    output = ppo_clip(logprob, torch.zeros(1, 1), torch.tensor([[advantage]]), ONE, **bounds)
    output.total.backward()
    return output, logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0.0),
        (1.2, 2.0, -2.4, -2.4, 0.0),
        (1.5, 2.0, -2.6, 0.0, 1.0),
        (0.5, 2.0, -1.0, -1.0, 0.0),
        (0.5, -2.0, 1.6, 0.0, 1.0),
        (0.9, -2.0, 1.8, 1.8, 0.0),
        (1.5, -2.0, 3.0, 3.0, 0.0),
        (5.0, -2.0, 10.0, 10.0, 0.0),
        (5.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_by_hand(ratio, advantage, loss, gradient, clipped):
    """Pessimistic: a gain is clipped from above, a loss is not forgiven."""
    output, found = clip_at(ratio, advantage)
    assert output.total.item() == pytest.approx(loss, rel=1e-6)
    assert found == pytest.approx(gradient, rel=1e-6)
    assert output.metrics["clip_fraction"].mean == clipped
    assert output.metrics["dual_clip_fraction"].mean == 0.0
    assert output.metrics["policy_loss"].mean == pytest.approx(loss, rel=1e-6)
    assert output.metrics["ratio"].mean == pytest.approx(ratio, rel=1e-6)
    assert output.metrics["ratio_abs"].mean == pytest.approx(abs(ratio - 1), abs=1e-6)
    assert output.metrics["approx_kl"].mean == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


def test_dual_clip_by_hand():
    """c = 3 bounds the loss of a bad action that became five times as likely: −3 · −2 = 6 instead of 10."""
    output, gradient = clip_at(5.0, -2.0, clip_ratio_c=3.0)
    assert (output.total.item(), gradient) == (pytest.approx(6.0), 0.0)
    assert (output.metrics["clip_fraction"].mean, output.metrics["dual_clip_fraction"].mean) == (0.0, 1.0)
    assert clip_at(2.0, -2.0, clip_ratio_c=3.0)[0].total.item() == pytest.approx(4.0)
    assert clip_at(0.5, 2.0, clip_ratio_c=3.0)[0].total.item() == pytest.approx(-1.0)


def test_bounded_log_ratios_by_hand():
    """Beyond its bounds a log-ratio is the bound, and has no gradient."""
    output, gradient = clip_at(4.0, -2.0, clip_log_ratio_max=math.log(2.0))
    assert (output.total.item(), gradient) == (pytest.approx(4.0), 0.0)
    assert output.metrics["ratio"].mean == pytest.approx(2.0)
    output, gradient = clip_at(0.1, 2.0, clip_log_ratio_min=math.log(0.5))
    assert (output.total.item(), gradient) == (pytest.approx(-1.0), 0.0)
    assert clip_at(1.9, -2.0, clip_log_ratio_max=math.log(2.0))[1] == pytest.approx(3.8)


@pytest.mark.parametrize("advantage", [2.0, 0.0, -2.0])
def test_a_ratio_that_would_overflow_gives_finite_gradients(advantage):
    """exp(200) is infinite, and 0 · ∞ no number: log-ratios are bounded by 20."""
    logprob = torch.tensor([[200.0, -200.0]], requires_grad=True)
    mask, zero = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2)
    output = ppo_clip(logprob, zero, torch.full((1, 2), advantage), mask, clip_ratio_low=0.2, clip_ratio_high=0.2)
    output.total.backward()
    assert logprob.grad.tolist() == [[0.0, 0.0]]
    assert output.metrics["ratio"].mean == pytest.approx((math.exp(20.0) + math.exp(-20.0)) / 2)
    expected = {2.0: -2.4 - 2 * math.exp(-20), 0.0: 0.0, -2.0: 2 * math.exp(20.0) + 1.6}[advantage]
    assert output.total.item() == pytest.approx(expected)


def test_finer_ratios_by_hand():
    """Ratios 1 and 2 in one decision: (−1 − 1.2) / 2 with advantage 1 and ε 0.2."""
    logprob = torch.tensor([[[0.0, math.log(2.0)]]])
    output = ppo_clip(logprob, torch.zeros(1, 1, 2), torch.ones(1, 1), ONE, clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert output.total.item() == pytest.approx(-1.1)
    assert output.metrics["clip_fraction"].mean == 0.5


@settings(max_examples=40)
@given(
    CASES,
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 1.1, 3.0]),
    st.sampled_from([None, 0.0, -1.0, -20.0]),
    st.sampled_from([None, 0.0, 1.0, 20.0]),
    st.sampled_from(AGGREGATIONS),
)
def test_what_the_reference_says(x, low, high, dual, log_min, log_max, aggregation):
    bounds = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
    bounds |= {"clip_log_ratio_min": log_min, "clip_log_ratio_max": log_max, "aggregation": aggregation}
    found = ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, **bounds)
    logprob, old, _, advantage, mask = x.lists()
    expect_same(found, reference.ppo_clip(logprob, old, advantage, mask, **bounds))


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"clip_ratio_low": 1.5}, r"clip_ratio_low: expected a value in \[0, 1\], found 1.5"),
        ({"clip_ratio_low": -0.1}, r"clip_ratio_low: expected a value in \[0, 1\]"),
        ({"clip_ratio_high": -0.1}, r"clip_ratio_high: expected at least 0"),
        ({"clip_ratio_c": 1.0}, r"clip_ratio_c: expected more than 1"),
        ({"clip_log_ratio_min": 0.1}, r"clip_log_ratio_min: expected a value in \[-20, 0\]"),
        ({"clip_log_ratio_max": 21.0}, r"clip_log_ratio_max: expected a value in \[0, 20\]"),
    ],
)
def test_bounds_out_of_their_range_are_refused_by_name(params, problem):
    for name in ("ppo_clip", "dapo", "actor_critic"):
        with pytest.raises(ConfigError, match=problem):
            LOSSES.build(name, params, place="algorithm")
    with pytest.raises(ConfigError, match=problem):
        clip_at(1.0, 1.0, **params)


def test_by_name():
    assert LOSSES.build("PPO_clip", {"clip_ratio_high": 0.28}, place="algorithm") == PPOClip(clip_ratio_high=0.28)
    assert (PPOClip().clip_ratio_low, PPOClip().clip_ratio_high, PPOClip().clip_ratio_c) == (0.2, 0.2, None)
    assert (DAPO().clip_ratio_low, DAPO().clip_ratio_high, DAPO().clip_ratio_c, DAPO().loss_agg_func) == (
        0.2,
        0.28,
        None,
        "token-mean",
    )


@pytest.mark.parametrize("shape", [(2,), (2, 1, 1, 1, 1)])
def test_a_wrong_rank_is_named(shape):
    x = torch.zeros(shape)
    with pytest.raises(ShapeError, match=r"ppo_clip\(logprob\): expected \[B, T\], \[B, T, K\] or \[B, T, K, A\]"):
        ppo_clip(x, x, x, x.bool(), clip_ratio_low=0.2, clip_ratio_high=0.2)

"""Losses with one ratio for all decisions of a row: GSPO and GMPO."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, case, expect_same, gradient, row_constant

from rlinf.algorithms.losses.policy.gmpo import GMPO, gmpo
from rlinf.algorithms.losses.policy.gspo import GSPO, gspo
from rlinf.algorithms.losses.policy.ppo import PPOClip
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.terms import Aggregation
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import means

BOUNDS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}


def row(log_ratios, advantage, mask=None):
    """The tensors of one row, in float64."""
    logprob = torch.tensor([log_ratios], dtype=torch.float64, requires_grad=True)
    gain = torch.tensor([advantage], dtype=torch.float64).expand(1, len(log_ratios)) if isinstance(advantage, float) else advantage
    valid = torch.tensor([[True] * len(log_ratios) if mask is None else mask])
    return logprob, torch.zeros_like(logprob), gain, valid


def test_gspo_by_hand():
    """Ratios 2 and 1/2 have the geometric mean 1; 2 and 1 have √2, which is clipped to 1.3 where it is a gain."""
    output = gspo(*row([math.log(2), math.log(0.5)], 3.0), **BOUNDS)
    assert (output.total.item(), output.weight.item()) == (pytest.approx(-3.0), 1.0)
    inputs = row([math.log(2), 0.0], 1.0)
    output = gspo(*inputs, **BOUNDS)
    output.total.backward()
    assert output.total.item() == pytest.approx(-1.3)
    assert inputs[0].grad.tolist() == [[0.0, 0.0]]
    root = math.sqrt(2)
    expected = {"policy_loss": -1.3, "ratio": root, "ratio_abs": root - 1, "approx_kl": root - 1 - math.log(root)}
    assert means(output.metrics) == pytest.approx(expected | {"clip_fraction": 1.0, "dual_clip_fraction": 0.0})
    inputs = row([math.log(2), 0.0], -1.0)
    output = gspo(*inputs, **BOUNDS)
    output.total.backward()
    assert output.total.item() == pytest.approx(root)
    assert inputs[0].grad.tolist() == [[pytest.approx(root / 2)] * 2]
    assert gspo(*row([math.log(2), 0.0], -1.0), **BOUNDS, clip_ratio_c=1.2).total.item() == pytest.approx(1.2)


def test_gspo_token_by_hand():
    """The value of each decision is that of the row, but its gradient has its own advantage: s Â / 2 each."""
    s = math.sqrt(1.1)
    for token_level, expected in ((True, [-s / 2, s / 2 * 3]), (False, [s / 2, s / 2])):
        inputs = row([math.log(1.1), 0.0], torch.tensor([[1.0, -3.0]], dtype=torch.float64))
        output = gspo(*inputs, **BOUNDS, token_level=token_level)
        output.total.backward()
        assert output.total.item() == pytest.approx((-s + 3 * s) / 2)
        assert inputs[0].grad.tolist() == [pytest.approx(expected)]


def test_one_token_far_from_the_old_policy_counts_in_the_ratio_of_its_row():
    """Of log-ratios 0 and −29, s is exp(−29 / 2), not exp(−10); and the far token has its share of the gradient."""
    s = math.exp(-14.5)
    for loss, value in ((lambda *x: gspo(*x, **BOUNDS), s), (gmpo, s)):
        inputs = row([0.0, -29.0], 1.0)
        output = loss(*inputs)
        output.total.backward()
        assert output.total.item() == pytest.approx(-value, rel=1e-9)
        assert inputs[0].grad[0].tolist() == pytest.approx([-value / 2, -value / 2], rel=1e-9)


def test_the_ratio_of_a_row_does_not_overflow():
    for loss in (lambda *x: gspo(*x, **BOUNDS), gmpo):
        inputs = row([1e4, 0.0], -1.0)
        output = loss(*inputs)
        output.total.backward()
        assert output.total.item() == pytest.approx(math.exp(20.0))
        assert inputs[0].grad.isfinite().all()


def test_gmpo_by_hand():
    """Log-ratios 1 and −1 with bounds 0.4: a gain keeps 0.4 and −1, a loss keeps 1 and −0.4."""
    for advantage, logs, slopes in ((2.0, (0.4, -1.0), (0.0, 1.0)), (-2.0, (1.0, -0.4), (1.0, 0.0))):
        inputs = row([1.0, -1.0], advantage)
        output = gmpo(*inputs)
        output.total.backward()
        expected = -advantage * math.exp(sum(logs) / 2)
        assert output.total.item() == pytest.approx(expected)
        assert inputs[0].grad.tolist() == [pytest.approx([expected / 2 * slope for slope in slopes])]
        assert output.metrics["clip_fraction"].mean == 0.5
        assert output.metrics["policy_loss"].mean == pytest.approx(expected)
        assert output.metrics["ratio"].mean == pytest.approx(math.cosh(1.0))
    assert gmpo(*row([1.0, -1.0], 0.0)).metrics["clip_fraction"].mean == 0.0
    wide = gmpo(*row([1.0, -1.0], 2.0), clip_log_ratio_low=0.1, clip_log_ratio_high=0.6)
    assert wide.total.item() == pytest.approx(-2 * math.exp(-0.2))


@pytest.mark.parametrize(
    "loss", [lambda *x, **k: gspo(*x, **BOUNDS, **k), lambda *x, **k: gspo(*x, **BOUNDS, token_level=True, **k), gmpo]
)
def test_columns_where_nothing_was_decided_do_not_count(loss):
    """Neither in the row's mean nor in the loss; a row of them weighs nothing."""
    short, long = row([0.1, 0.2], 1.0), row([0.1, math.nan, 0.2, math.inf], 1.0, [True, False, True, False])
    one, two = loss(*short), loss(*long)
    assert two.total.item() == pytest.approx(one.total.item())
    assert two.weight == one.weight == 1
    two.total.backward()
    one.total.backward()
    assert long[0].grad[0, [0, 2]].tolist() == pytest.approx(short[0].grad[0].tolist())
    assert long[0].grad[0, [1, 3]].tolist() == [0.0, 0.0]
    nothing = row([0.1, math.nan], 1.0, [False, False])
    empty = loss(*nothing)
    empty.total.backward()
    assert (empty.total.item(), empty.weight.item(), nothing[0].grad.tolist()) == (0.0, 0.0, [[0.0, 0.0]])


def test_by_default_each_row_counts_once():
    x = case(3)
    mean = Aggregation("seq-mean-token-mean")
    for loss in (lambda **k: gspo(x.logprob, x.logprob_old, x.advantage, x.mask, **BOUNDS, **k),):
        assert loss().total == loss(aggregation=mean).total
    assert gmpo(x.logprob, x.logprob_old, x.advantage, x.mask).weight == x.mask.any(1).sum()
    assert GSPO().loss_agg_func == GMPO().loss_agg_func == "seq-mean-token-mean"
    assert (GMPO().clip_log_ratio_low, GMPO().clip_log_ratio_high) == (0.4, 0.4)
    assert (GSPO().clip_ratio_low, GSPO().clip_ratio_high) == (3e-4, 4e-4)


@settings(max_examples=40)
@given(CASES, st.sampled_from([None, 1.1]), st.booleans(), st.sampled_from(AGGREGATIONS))
def test_gspo_is_what_the_reference_says(x, dual, token_level, aggregation):
    options = {**BOUNDS, "clip_ratio_c": dual, "token_level": token_level, "aggregation": aggregation}
    logprob, old, _, advantage, mask = x.lists()
    found = gspo(x.logprob, x.logprob_old, x.advantage, x.mask, **options)
    expect_same(found, reference.gspo(logprob, old, advantage, mask, **options))


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.0, 0.4]), st.sampled_from([0.0, 0.2]), st.booleans(), st.sampled_from(AGGREGATIONS))
def test_gmpo_is_what_the_reference_says(x, low, high, constant, aggregation):
    x = row_constant(x) if constant else x
    options = {"clip_log_ratio_low": low, "clip_log_ratio_high": high, "aggregation": aggregation}
    logprob, old, _, advantage, mask = x.lists()
    found = gmpo(x.logprob, x.logprob_old, x.advantage, x.mask, **options)
    expect_same(found, reference.gmpo(logprob, old, advantage, mask, **options))


def test_with_one_advantage_in_a_row_both_forms_of_gspo_have_one_gradient():
    x = row_constant(case(8, rows=6, scale=0.1))
    one, two = (
        gradient(lambda c, form=form: gspo(c.logprob, c.logprob_old, c.advantage, c.mask, **BOUNDS, token_level=form), x)
        for form in (False, True)
    )
    torch.testing.assert_close(one, two)


def test_rows_of_one_decision_have_the_ratio_of_ppo():
    """By name, with all bounds."""

    x = case(9, rows=8, horizon=1)
    inputs = LossInputs(mask=x.mask, logprob=x.logprob, logprob_old=x.logprob_old, advantage=x.advantage)
    bounds = {"clip_ratio_c": 1.3, "clip_log_ratio_min": -0.1, "clip_log_ratio_max": 0.4}
    expected = PPOClip(0.2, 0.3, **bounds).of(inputs)
    for token_level in (False, True):
        found = GSPO(0.2, 0.3, **bounds, token_level=token_level).of(inputs)
        torch.testing.assert_close(found.total, expected.total)
        assert means(found.metrics) == pytest.approx(means(expected.metrics))


def test_bounds_out_of_their_range_are_refused_by_name():
    for name in ("clip_log_ratio_low", "clip_log_ratio_high"):
        with pytest.raises(ConfigError, match=rf"{name}: expected at least 0"):
            GMPO(**{name: -0.1})
        with pytest.raises(ConfigError, match=name):
            gmpo(*row([0.0], 1.0), **{name: -0.1})
    with pytest.raises(ConfigError, match="clip_ratio_low"):
        GSPO(clip_ratio_low=2.0)
    with pytest.raises(ConfigError, match="clip_ratio_low"):
        gspo(*row([0.0], 1.0), clip_ratio_low=-1.0, clip_ratio_high=0.0)

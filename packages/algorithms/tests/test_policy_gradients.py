"""Losses that are the policy gradient with weights, or with a soft gate: REINFORCE, CISPO, SAPO."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, case, expect_same

from rlinf.algorithms.losses.policy.cispo import CISPO, cispo
from rlinf.algorithms.losses.policy.reinforce import Reinforce, reinforce
from rlinf.algorithms.losses.policy.sapo import SAPO, sapo
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

ONE = torch.ones(1, 1, dtype=torch.bool)


def at(loss, logprob, ratio, advantage, **options):
    """The loss of one decision, and its gradient."""
    new = torch.tensor([[logprob]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[logprob - math.log(ratio)]], dtype=torch.float64)
    output = loss(new, old, torch.tensor([[advantage]], dtype=torch.float64), ONE, **options)
    output.total.backward()
    return output, new.grad.item()


def off_policy(logprob, old, advantage, mask, **options):
    return reinforce(logprob, advantage, mask, logprob_old=old, **options)


def on_policy(logprob, old, advantage, mask, **options):
    return reinforce(logprob, advantage, mask, **options)


@pytest.mark.parametrize(("loss", "weight"), [(on_policy, 1.0), (off_policy, 1.5)])
def test_reinforce_by_hand(loss, weight):
    output, gradient = at(loss, -0.7, 1.5, 3.0)
    assert (output.total.item(), gradient) == (pytest.approx(weight * 2.1), pytest.approx(-3.0 * weight))
    observed = {"ratio": 1.5, "ratio_abs": 0.5, "approx_kl": 0.5 - math.log(1.5)} if loss is off_policy else {}
    assert means(output.metrics) == pytest.approx({"policy_loss": weight * 2.1} | observed)


@pytest.mark.parametrize(
    ("ratio", "weight", "clipped"), [(1.0, 1.0, 0.0), (1.2, 1.2, 0.0), (5.0, 1.3, 1.0), (0.9, 0.9, 0.0), (0.5, 0.8, 1.0)]
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_by_hand(ratio, weight, clipped, advantage):
    """A clipped decision keeps its gradient: the weight alone is clipped, whatever the sign of the advantage."""
    output, gradient = at(cispo, -0.7, ratio, advantage, clip_ratio_low=0.2, clip_ratio_high=0.3)
    loss = 0.7 * weight * advantage
    assert (output.total.item(), gradient) == (pytest.approx(loss), pytest.approx(-weight * advantage))
    observed = {"ratio": ratio, "ratio_abs": abs(ratio - 1), "approx_kl": ratio - 1 - math.log(ratio)}
    assert means(output.metrics) == pytest.approx({"policy_loss": loss, "clip_fraction": clipped} | observed)


def test_cispo_may_have_no_lower_bound():
    assert at(cispo, -0.7, 1e-3, 2.0, clip_ratio_low=10.0, clip_ratio_high=0.2)[1] == pytest.approx(-2e-3)
    assert (CISPO().clip_ratio_low, CISPO().clip_ratio_high, CISPO().loss_agg_func) == (1.0, 4.0, "token-mean")


@pytest.mark.parametrize(
    ("ratio", "advantage", "tau", "options"),
    [
        (1.0, 2.0, 1.0, {}),
        (1.0, -2.0, 1.05, {}),
        (3.0, 2.0, 1.0, {}),
        (3.0, -2.0, 1.05, {}),
        (0.25, -2.0, 4.0, {"tau_neg": 4.0}),
        (0.25, 2.0, 0.5, {"tau_pos": 0.5}),
    ],
)
def test_sapo_by_hand(ratio, advantage, tau, options):
    """At ρ = 1 the loss is −2 Â / τ with the slope of ρ; elsewhere the slope is that times 4 σ (1 − σ)."""
    output, gradient = at(sapo, -0.7, ratio, advantage, **options)
    s = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert output.total.item() == pytest.approx(-4 / tau * s * advantage)
    assert gradient == pytest.approx(-advantage * ratio * 4 * s * (1 - s))
    assert output.metrics["gate"].mean == pytest.approx(4 * s * (1 - s))
    assert output.metrics["policy_loss"].mean == output.total
    assert output.metrics["ratio"].mean == pytest.approx(ratio)
    if ratio == 1.0:
        assert (output.total.item(), gradient) == (pytest.approx(-2 * advantage / tau), pytest.approx(-advantage))


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.5), (-2.0, 0.5)])
def test_one_gate_for_a_row_by_hand(advantage, tau):
    """Ratios 8 and 2 have the geometric mean 4; the third column is masked. Each decision has half of the slope of s."""
    new = torch.tensor([[math.log(8.0), math.log(2.0), math.nan]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    options = {"tau_pos": 1.5, "tau_neg": 0.5, "sequence_level": True}
    output = sapo(new, torch.zeros_like(new), torch.full_like(mask, advantage, dtype=torch.float64), mask, **options)
    output.total.backward()
    s = 1 / (1 + math.exp(-tau * 3.0))
    assert (output.total.item(), output.weight.item()) == (pytest.approx(-4 / tau * s * advantage), 1.0)
    assert new.grad[0].tolist() == pytest.approx([-advantage * 4.0 * 4 * s * (1 - s) / 2] * 2 + [0.0])
    found = means(output.metrics)
    assert (found["ratio"], found["gate"]) == (pytest.approx(4.0), pytest.approx(4 * s * (1 - s)))


def test_one_gate_for_a_row_of_one_decision_is_its_own():
    x = case(4, rows=6, horizon=1)
    tensors = (x.logprob, x.logprob_old, x.advantage, x.mask)
    assert sapo(*tensors, sequence_level=True).total.item() == pytest.approx(sapo(*tensors).total.item())


def test_sapo_counts_rows_by_default():
    x = case(3)
    assert sapo(x.logprob, x.logprob_old, x.advantage, x.mask).weight == x.mask.any(1).sum()
    assert (SAPO().tau_pos, SAPO().tau_neg, SAPO().loss_agg_func) == (1.0, 1.05, "seq-mean-token-mean")


@settings(max_examples=40)
@given(CASES, st.booleans(), st.sampled_from(AGGREGATIONS))
def test_reinforce_is_what_the_reference_says(x, weighted, aggregation):
    logprob, old, _, advantage, mask = x.lists()
    found = reinforce(x.logprob, x.advantage, x.mask, logprob_old=x.logprob_old if weighted else None, aggregation=aggregation)
    old = old if weighted else None
    expect_same(found, reference.reinforce(logprob, advantage, mask, logprob_old=old, aggregation=aggregation))


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.0, 0.2, 1.0, 10.0]), st.sampled_from([0.0, 0.3, 4.0]), st.sampled_from(AGGREGATIONS))
def test_cispo_is_what_the_reference_says(x, low, high, aggregation):
    logprob, old, _, advantage, mask = x.lists()
    options = {"clip_ratio_low": low, "clip_ratio_high": high, "aggregation": aggregation}
    if x.logprob.equal(x.logprob_old):
        options["clip_ratio_low"] = 0.0
    found = cispo(x.logprob, x.logprob_old, x.advantage, x.mask, **options)
    expect_same(found, reference.cispo(logprob, old, advantage, mask, **options))


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([0.1, 1.05, 3.0]), st.booleans(), st.sampled_from(AGGREGATIONS))
def test_sapo_is_what_the_reference_says(x, tau_pos, tau_neg, sequence_level, aggregation):
    logprob, old, _, advantage, mask = x.lists()
    options = {"tau_pos": tau_pos, "tau_neg": tau_neg, "sequence_level": sequence_level, "aggregation": aggregation}
    found = sapo(x.logprob, x.logprob_old, x.advantage, x.mask, **options)
    expect_same(found, reference.sapo(logprob, old, advantage, mask, **options))


def test_hyper_parameters_of_the_classes_reach_the_functions():
    x = case(5)
    inputs = LossInputs(mask=x.mask, logprob=x.logprob, logprob_old=x.logprob_old, advantage=x.advantage)
    tensors = (x.logprob, x.logprob_old, x.advantage, x.mask)
    assert CISPO(0.1, 0.2).of(inputs).total == cispo(*tensors, clip_ratio_low=0.1, clip_ratio_high=0.2).total
    assert SAPO(0.5, 2.0).of(inputs).total == pytest.approx(sapo(*tensors, tau_pos=0.5, tau_neg=2.0).total)
    by_rows = SAPO(sequence_level=True).of(inputs).total
    assert by_rows == pytest.approx(sapo(*tensors, sequence_level=True).total)
    assert by_rows != pytest.approx(sapo(*tensors).total)
    assert Reinforce().of(inputs).total == on_policy(*tensors).total
    assert Reinforce(importance_ratio=True).of(inputs).total == off_policy(*tensors).total
    assert Reinforce().of(LossInputs(mask=x.mask, logprob=x.logprob, advantage=x.advantage)).total == on_policy(*tensors).total
    with pytest.raises(ShapeError, match=r"Reinforce\(logprob_old\): expected a tensor, found None"):
        Reinforce(importance_ratio=True).of(LossInputs(mask=x.mask, logprob=x.logprob, advantage=x.advantage))


@pytest.mark.parametrize(
    ("kind", "function", "name", "bad"),
    [
        (CISPO, cispo, "clip_ratio_low", -0.1),
        (CISPO, cispo, "clip_ratio_high", -0.1),
        (SAPO, sapo, "tau_pos", 0.0),
        (SAPO, sapo, "tau_neg", 0.0),
    ],
)
def test_hyper_parameters_out_of_their_range_are_refused_by_name(kind, function, name, bad):
    with pytest.raises(ConfigError, match=rf"{name}: expected "):
        kind(**{name: bad})
    others = {"clip_ratio_low": 0.0, "clip_ratio_high": 0.0} if kind is CISPO else {}
    with pytest.raises(ConfigError, match=rf"{name}: expected "):
        at(function, 0.0, 1.0, 1.0, **(others | {name: bad}))

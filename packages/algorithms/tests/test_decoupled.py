import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, case, expect_same

from rlinf.algorithms.losses.policy.decoupled import DecoupledActorCritic, DecoupledPPO, decoupled_ppo, interpolated_proximal
from rlinf.algorithms.losses.policy.ppo import ppo_clip
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.value import clipped_value_loss
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

ONE = torch.ones(1, 1, dtype=torch.bool)
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def at(ratio, weight, advantage, **options):
    """π / π_prox is `ratio`, π_prox / π_old is `weight`."""
    logprob = torch.tensor([[math.log(ratio) + math.log(weight)]], dtype=torch.float64, requires_grad=True)
    proximal = torch.tensor([[math.log(weight)]], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, 1, dtype=torch.float64)
    output = decoupled_ppo(logprob, old, proximal, torch.tensor([[advantage]]), ONE, **CLIP, **options)
    output.total.backward()
    assert proximal.grad is None
    return output, logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "weight", "advantage", "options", "loss", "gradient"),
    [
        (1.0, 1.0, 2.0, {}, -2.0, -2.0),
        (1.1, 3.0, 2.0, {}, -6.6, -6.6),
        (1.5, 3.0, 2.0, {}, -7.2, 0.0),
        (1.5, 0.5, -2.0, {}, 1.5, 1.5),
        (5.0, 0.5, -2.0, {"clip_ratio_c": 3.0}, 3.0, 0.0),
        (1.1, 3.0, 2.0, {"behave_weight_threshold": 2.0}, 0.0, 0.0),
        (1.1, 2.0, 2.0, {"behave_weight_threshold": 2.0001}, -4.4, -4.4),
        (1.1, 3.0, 2.0, {"behave_weight_threshold": 2.0, "behave_weight_cap": "truncate"}, -4.4, -4.4),
        (1.1, 1.5, 2.0, {"behave_weight_threshold": 2.0, "behave_weight_cap": "truncate"}, -3.3, -3.3),
    ],
)
def test_by_hand(ratio, weight, advantage, options, loss, gradient):
    output, found = at(ratio, weight, advantage, **options)
    assert (output.total.item(), found) == (pytest.approx(loss), pytest.approx(gradient))
    assert output.weight == 1
    bounded = min(max(ratio, 0.8), 1.2)
    dual = options.get("clip_ratio_c") is not None
    assert means(output.metrics) == pytest.approx(
        {
            "policy_loss": loss,
            "proximal_ratio": ratio,
            "clipped_proximal_ratio": bounded,
            "proximal_approx_kl": ratio - 1 - math.log(ratio),
            "behave_ratio": weight,
            "behave_approx_kl": weight - 1 - math.log(weight),
            "behave_clip_fraction": float(weight > options.get("behave_weight_threshold", math.inf)),
            "clip_fraction": float(ratio > 1.2 and advantage > 0),
            "dual_clip_fraction": float(dual),
        },
        abs=1e-9,
    )


def test_interpolation_by_hand():
    """Versions 10, 9, 7 and 3 of 10, and one from the future: α is 0, 0, 2/3, 6/7 and 0."""
    old, new = torch.full((1, 5), -2.0), torch.full((1, 5), -1.0, requires_grad=True)
    found = interpolated_proximal(new, old, torch.tensor([[10, 9, 7, 3, 12]]), version_now=10)
    assert found.tolist() == [pytest.approx([-2.0, -2.0, -2.0 + 2 / 3, -2.0 + 6 / 7, -2.0])]
    assert not found.requires_grad


@settings(max_examples=20)
@given(CASES, st.integers(0, 1000), st.integers(0, 6))
def test_interpolation_is_what_the_reference_says(x, seed, now):
    version = torch.randint(0, 7, x.mask.shape, generator=torch.Generator().manual_seed(seed))
    found = interpolated_proximal(x.logprob, x.logprob_old, version, version_now=now)
    logprob, old, *_ = x.lists()
    expected = reference.interpolated_proximal(logprob, old, version.tolist(), version_now=now)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).reshape(found.shape))


@settings(max_examples=40)
@given(
    CASES,
    st.sampled_from([None, 1.1]),
    st.sampled_from([None, 0.5, 2.0]),
    st.sampled_from(["drop", "truncate"]),
    st.sampled_from(AGGREGATIONS),
)
def test_what_the_reference_says(x, dual, threshold, cap, aggregation):
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": dual, "aggregation": aggregation}
    options |= {"behave_weight_threshold": threshold, "behave_weight_cap": cap}
    found = decoupled_ppo(x.logprob, x.logprob_old, x.logprob_proximal, x.advantage, x.mask, **options)
    expect_same(found, reference.decoupled_ppo(*x.lists(), **options))


def test_around_the_policy_that_decided_it_is_ppo():
    x = case(4, chunk=(2,))
    options = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 1.5}
    found = decoupled_ppo(x.logprob, x.logprob_old, x.logprob_old, x.advantage, x.mask, **options, behave_weight_threshold=1.0)
    assert found.total == ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, **options).total


def inputs_of(**changes):
    x, y = case(1, rows=6), case(2, rows=6)
    inputs = {"mask": x.mask, "logprob": x.logprob, "logprob_old": x.logprob_old, "logprob_proximal": x.logprob_proximal}
    inputs |= {"advantage": x.advantage, "target": y.advantage, "value": y.logprob, "value_old": y.logprob_old}
    version = torch.arange(18).reshape(6, 3) % 4
    return LossInputs(**(inputs | {"version": version, "version_now": 5} | changes))


def test_given_and_interpolated_proximal_policies_by_name():
    x = inputs_of()
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    guess = interpolated_proximal(x.logprob, x.logprob_old, x.version, version_now=5)
    for loss, proximal in (
        (DecoupledPPO(), x.logprob_proximal),
        (DecoupledPPO(proximal="interpolated", behave_weight_threshold=1.2), guess),
        (DecoupledPPO(behave_weight_threshold=1.2, behave_weight_cap="truncate"), x.logprob_proximal),
    ):
        cap = {"behave_weight_threshold": loss.behave_weight_threshold, "behave_weight_cap": loss.behave_weight_cap}
        expected = decoupled_ppo(x.logprob, x.logprob_old, proximal, x.advantage, x.mask, **clip, **cap)
        assert loss.of(x).total == expected.total


def test_bounds_of_log_ratios_reach_the_proximal_ratio_alone():
    x = inputs_of()
    bounded = ppo_clip(x.logprob, x.logprob_proximal, x.advantage, x.mask, **CLIP, clip_log_ratio_min=-0.05, clip_log_ratio_max=0.1)
    found = DecoupledPPO(clip_log_ratio_min=-0.05, clip_log_ratio_max=0.1).of(x).metrics
    assert found["proximal_ratio"] == bounded.metrics["ratio"]
    assert found["behave_ratio"] == DecoupledPPO().of(x).metrics["behave_ratio"]


def test_the_critic_is_added():
    x = inputs_of()
    loss = DecoupledActorCritic(value_clip=0.2, huber_delta=1.5, value_loss_coef=0.7)
    critic = clipped_value_loss(x.value, x.value_old, x.target, x.mask, value_clip=0.2, huber_delta=1.5)
    torch.testing.assert_close(loss.of(x).total, DecoupledPPO().of(x).total + 0.7 * critic.total)
    assert loss.of(x).metrics["value_loss"] == critic.metrics["value_loss"]
    assert (DecoupledActorCritic().value_loss_coef, DecoupledActorCritic().proximal) == (0.5, "given")


def test_versions_are_logged_where_somebody_counts_them():
    metrics = means(DecoupledPPO().of(inputs_of()).metrics)
    version, mask = inputs_of().version, inputs_of().mask
    assert metrics["average_version"] == pytest.approx(version[mask].float().mean().item())
    assert metrics["current_version"] == 5.0
    bare = DecoupledPPO().of(inputs_of(version=None, version_now=None)).metrics
    assert "average_version" not in bare
    assert "current_version" not in bare


@pytest.mark.parametrize(
    ("proximal", "missing"), [("given", "logprob_proximal"), ("interpolated", "version"), ("interpolated", "version_now")]
)
@pytest.mark.parametrize("kind", [DecoupledPPO, DecoupledActorCritic])
def test_what_the_loss_needs_is_named(kind, proximal, missing):
    with pytest.raises(ShapeError, match=rf"{kind.__name__}\({missing}\): expected a tensor, found None"):
        kind(proximal=proximal).of(inputs_of(**{missing: None}))


def test_a_wrong_shape_of_the_interpolation_is_named():
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ShapeError, match=r"interpolated_proximal\(version\): expected shape \(2, 3\)"):
        interpolated_proximal(x, x, torch.zeros(2, 4), version_now=1)
    with pytest.raises(ShapeError, match=r"interpolated_proximal\(logprob_old\): expected shape \(2, 3, 4\)"):
        interpolated_proximal(x, x[..., 0], torch.zeros(2, 3), version_now=1)


@pytest.mark.parametrize("params", [{"behave_weight_threshold": 0.0}, {"clip_ratio_low": 2.0}, {"value_clip": 0.0}])
def test_hyper_parameters_out_of_their_range_are_refused_by_name(params):
    (name,) = params
    with pytest.raises(ConfigError, match=rf"{name}: expected "):
        DecoupledActorCritic(**params)
    if name == "behave_weight_threshold":
        with pytest.raises(ConfigError, match=name):
            at(1.0, 1.0, 1.0, **params)

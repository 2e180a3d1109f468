import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, case, expect_same

from rlinf.algorithms.losses.entropy import entropy_loss
from rlinf.algorithms.losses.policy.ppo import ActorCritic, PPOClip, ppo_clip
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.value import clipped_value_loss
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import merge

ONE = torch.ones(1, 1, dtype=torch.bool)


def value_at(value, old, target, **options):
    value = torch.tensor([[value]], requires_grad=True)
    output = clipped_value_loss(value, torch.tensor([[old]]), torch.tensor([[target]]), ONE, **options)
    output.total.backward()
    return output, value.grad.item()


@pytest.mark.parametrize(
    ("value", "old", "target", "options", "loss", "gradient"),
    [
        (1.0, 0.0, 3.0, {}, 2.0, -2.0),
        (1.0, 0.0, 3.0, {"huber_delta": 0.5}, 0.5 * (2.0 - 0.25), -0.5),
        (1.0, 0.0, 1.2, {"huber_delta": 0.5}, 0.02, -0.2),
        (1.0, 0.0, 3.0, {"value_clip": 0.2}, 0.5 * 2.8**2, 0.0),
        (1.0, 0.0, -1.0, {"value_clip": 0.2}, 2.0, 2.0),
        (-1.0, 0.0, -3.0, {"value_clip": 0.2}, 0.5 * 2.8**2, 0.0),
        (0.1, 0.0, 3.0, {"value_clip": 0.2}, 0.5 * 2.9**2, -2.9),
        (-0.1, 0.0, 3.0, {"value_clip": 0.2}, 0.5 * 3.1**2, -3.1),
        (1.0, 0.0, 3.0, {"value_clip": 0.2, "huber_delta": 1.0}, 2.3, 0.0),
    ],
)
def test_by_hand(value, old, target, options, loss, gradient):
    output, found = value_at(value, old, target, **options)
    assert output.total.item() == pytest.approx(loss, rel=1e-6)
    assert found == pytest.approx(gradient, rel=1e-6)
    assert output.metrics["value_loss"].mean == pytest.approx(loss, rel=1e-6)
    assert ("value_clip_fraction" in output.metrics) == ("value_clip" in options)
    if "value_clip" in options:
        assert output.metrics["value_clip_fraction"].mean == float(abs(value - old) > 0.2)


def test_explained_variance():
    target, mask = torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]])

    def of(value):
        return clipped_value_loss(value, value, target, mask).metrics["explained_variance"].mean

    assert of(target) == pytest.approx(1.0)
    assert of(target + 5.0) == pytest.approx(1.0)
    assert of(torch.zeros(1, 4)) == pytest.approx(0.0)
    # errors 0, 1, 2: their squares about the mean are 2, those of the target are 2
    assert of(torch.ones(1, 4)) == pytest.approx(0.0)
    # errors 0.5, 0, −0.5
    assert of(torch.tensor([[0.5, 2.0, 3.5, 0.0]])) == pytest.approx(0.75)


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, 0.1, 1.0]),
    st.sampled_from([None, 0.5, 2.0]),
    st.sampled_from(AGGREGATIONS),
)
def test_what_the_reference_says(seed, rows, horizon, value_clip, huber_delta, aggregation):
    x = case(seed, rows, horizon)
    options = {"value_clip": value_clip, "huber_delta": huber_delta, "aggregation": aggregation}
    tensors = (x.logprob, x.logprob_old, x.advantage)
    expected = reference.clipped_value_loss(*(t.tolist() for t in tensors), x.mask.tolist(), **options)
    expect_same(clipped_value_loss(*tensors, x.mask, **options), expected)


@pytest.mark.parametrize("options", [{}, {"value_clip": 0.3}, {"huber_delta": 0.5}, {"value_clip": 0.3, "huber_delta": 0.5}])
def test_gradients_against_finite_differences(options):
    x = case(3, rows=3)

    def total(value):
        return clipped_value_loss(value, x.logprob_old, x.advantage, x.mask, **options).total

    assert torch.autograd.gradcheck(total, x.logprob.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    x = case(5).map(lambda t: t if t.dtype == torch.bool else t.to(dtype))
    found = clipped_value_loss(x.logprob, x.logprob_old, x.advantage, x.mask, value_clip=0.2)
    expected = clipped_value_loss(x.logprob.float(), x.logprob_old.float(), x.advantage.float(), x.mask, value_clip=0.2)
    assert found.total.dtype == torch.float32
    assert found.total == expected.total


def test_masked_garbage_changes_nothing():
    x = case(5)
    clean = clipped_value_loss(x.logprob, x.logprob_old, x.advantage, x.mask, value_clip=0.2)
    value, old, target = (torch.where(x.mask, t, math.nan) for t in (x.logprob, x.logprob_old, x.advantage))
    value.requires_grad_()
    dirty = clipped_value_loss(value, old, target, x.mask, value_clip=0.2)
    dirty.total.backward()
    assert dirty.total == clean.total
    assert dirty.metrics == clean.metrics
    assert (value.grad[~x.mask] == 0).all()


@pytest.mark.parametrize("name", ["value", "value_old", "target"])
def test_a_wrong_shape_is_named(name):
    inputs = {k: torch.zeros(2, 3) for k in ("value", "value_old", "target")} | {name: torch.zeros(2, 4)}
    with pytest.raises(ShapeError, match=rf"clipped_value_loss\({name}\): expected shape \(2, 3\), found \(2, 4\)"):
        clipped_value_loss(**inputs, mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("params", [{"value_clip": 0.0}, {"huber_delta": 0.0}, {"value_loss_coef": -1.0}, {"clip_ratio_c": 1.0}])
def test_hyper_parameters_out_of_their_range_are_refused_by_name(params):
    (name,) = params
    with pytest.raises(ConfigError, match=rf"{name}: expected "):
        ActorCritic(**params)
    if name in ("value_clip", "huber_delta"):
        with pytest.raises(ConfigError, match=rf"{name}: expected "):
            value_at(0.0, 0.0, 0.0, **params)


def inputs_of(seed=1):
    x, y = case(seed), case(seed + 1)
    return LossInputs(
        mask=x.mask,
        logprob=x.logprob,
        logprob_old=x.logprob_old,
        advantage=x.advantage,
        target=y.advantage,
        value=y.logprob,
        value_old=y.logprob_old,
        entropy=y.logprob.abs(),
    )


def test_actor_critic_is_the_sum_of_its_parts():
    x = inputs_of()
    loss = ActorCritic(0.1, 0.3, 2.0, value_clip=0.2, huber_delta=1.5, value_loss_coef=0.7, entropy_bonus=0.01)
    found = loss.of(x)
    actor = ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=2.0)
    critic = clipped_value_loss(x.value, x.value_old, x.target, x.mask, value_clip=0.2, huber_delta=1.5)
    bonus = entropy_loss(x.entropy, x.mask)
    torch.testing.assert_close(found.total, actor.total + 0.7 * critic.total + 0.01 * bonus.total)
    assert found.metrics == merge([actor.metrics, critic.metrics, bonus.metrics])
    assert ActorCritic().value_loss_coef == 0.5


def test_bounds_of_log_ratios_reach_the_surrogate():
    x = inputs_of()
    bounds = {"clip_log_ratio_min": -0.05, "clip_log_ratio_max": 0.1}
    expected = ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, clip_ratio_low=0.2, clip_ratio_high=0.2, **bounds)
    for loss in (PPOClip(**bounds), ActorCritic(**bounds, value_loss_coef=0.0)):
        torch.testing.assert_close(loss.of(x).total, expected.total)

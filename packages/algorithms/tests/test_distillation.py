import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, case, expect_same

from rlinf.algorithms.losses.distillation import OPD, forward_kl, generalized_jsd, opd, reverse_kl
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

ONE = torch.ones(1, 1, dtype=torch.bool)
STUDENT, TEACHER = torch.tensor([[[0.5, 0.5]]]).double().log(), torch.tensor([[[0.8, 0.2]]]).double().log()
FORWARD = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
REVERSE = 0.5 * math.log(0.625) + 0.5 * math.log(2.5)


def logits(seed, rows=2, horizon=3, size=5, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    student, teacher = scale * torch.randn(2, rows, horizon, size, generator=g, dtype=torch.float64)
    return student, teacher, torch.rand(rows, horizon, generator=g) < 0.7


def test_opd_by_hand():
    logprob = torch.tensor([[-0.5, -1.0]], requires_grad=True)
    advantage = torch.tensor([[0.3, -0.7]], requires_grad=True)
    output = opd(logprob, advantage, torch.tensor([[True, True]]))
    output.total.backward()
    assert output.total.item() == pytest.approx(0.15 - 0.7)
    assert logprob.grad.tolist() == [pytest.approx([-0.3, 0.7])]
    assert advantage.grad is None
    assert means(output.metrics) == pytest.approx({"policy_loss": -0.275, "opd_reward": -0.2, "opd_reverse_kl": 0.2})


@settings(max_examples=40)
@given(CASES, st.sampled_from(AGGREGATIONS))
def test_opd_is_what_the_reference_says(x, aggregation):
    logprob, _, _, advantage, mask = x.lists()
    expected = reference.opd(logprob, advantage, mask, aggregation=aggregation)
    expect_same(opd(x.logprob, x.advantage, x.mask, aggregation=aggregation), expected)
    by_name = OPD().of(LossInputs(mask=x.mask, logprob=x.logprob, advantage=x.advantage))
    assert by_name.total == opd(x.logprob, x.advantage, x.mask).total


def test_divergences_by_hand():
    """Student (½, ½), teacher (0.8, 0.2); the mixture at β = ½ is (0.65, 0.35)."""
    assert forward_kl(STUDENT, TEACHER, ONE).total.item() == pytest.approx(FORWARD)
    assert reverse_kl(STUDENT, TEACHER, ONE).total.item() == pytest.approx(REVERSE)
    teacher = 0.8 * math.log(0.8 / 0.65) + 0.2 * math.log(0.2 / 0.35)
    student = 0.5 * math.log(0.5 / 0.65) + 0.5 * math.log(0.5 / 0.35)
    found = generalized_jsd(STUDENT, TEACHER, ONE)
    assert found.total.item() == pytest.approx((teacher + student) / 2)
    assert found.metrics["divergence"].mean == found.total.item()
    teacher = 0.8 * math.log(0.8 / 0.575) + 0.2 * math.log(0.2 / 0.425)
    student = 0.5 * math.log(0.5 / 0.575) + 0.5 * math.log(0.5 / 0.425)
    assert generalized_jsd(STUDENT, TEACHER, ONE, beta=0.25).total.item() == pytest.approx(teacher / 4 + student * 3 / 4)


def test_the_ends_of_the_jensen_shannon_divergence_are_the_two_directions():
    assert generalized_jsd(STUDENT, TEACHER, ONE, beta=0.0).total.item() == pytest.approx(FORWARD)
    assert generalized_jsd(STUDENT, TEACHER, ONE, beta=1.0).total.item() == pytest.approx(REVERSE)
    for beta, expected in ((1e-6, FORWARD), (1 - 1e-6, REVERSE)):
        found = generalized_jsd(STUDENT, TEACHER, ONE, beta=beta).total.item()
        assert found / min(beta, 1 - beta) == pytest.approx(expected, rel=1e-4)


def test_temperature_by_hand():
    """At temperature ½ probabilities are squared and normalised: (16/17, 1/17) of (0.8, 0.2)."""
    found = forward_kl(STUDENT, TEACHER, ONE, temperature=0.5).total.item()
    assert found == pytest.approx(16 / 17 * math.log(32 / 17) + 1 / 17 * math.log(2 / 17))


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, generalized_jsd])
def test_logits_do_as_well_as_log_probabilities(loss):
    student, teacher, mask = logits(1)
    one, two = loss(student, teacher, mask), loss(student.log_softmax(-1), teacher.log_softmax(-1), mask)
    assert one.total.item() == pytest.approx(two.total.item())
    assert loss(student, student, mask).total.item() == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([0.3, 5.0]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from(AGGREGATIONS),
)
def test_divergences_are_what_the_reference_says(seed, rows, horizon, size, scale, beta, temperature, aggregation):
    student, teacher, mask = logits(seed, rows, horizon, size, scale)
    lists = (student.tolist(), teacher.tolist(), mask.tolist())
    options = {"temperature": temperature, "aggregation": aggregation}
    expect_same(forward_kl(student, teacher, mask, **options), reference.forward_kl(*lists, **options))
    expect_same(reverse_kl(student, teacher, mask, **options), reference.reverse_kl(*lists, **options))
    expect_same(
        generalized_jsd(student, teacher, mask, beta=beta, **options), reference.generalized_jsd(*lists, beta=beta, **options)
    )


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gradients_against_finite_differences(beta):
    student, teacher, mask = logits(2)
    student.requires_grad_()
    teacher.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: generalized_jsd(s, teacher.detach(), mask, beta=beta, temperature=1.5).total, student)
    generalized_jsd(student, teacher, mask, beta=beta).total.backward()
    assert teacher.grad is None


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, generalized_jsd])
def test_what_neither_ever_says_adds_nothing(loss):
    """A word of probability 0 gives neither NaN in the value nor in the gradient."""
    student, teacher, mask = logits(4, size=3)
    never = torch.full_like(student[..., :1], -math.inf)
    wide = [torch.cat([x, never], -1).requires_grad_() for x in (student, teacher)]
    found = loss(*wide, mask)
    found.total.backward()
    assert found.total.item() == pytest.approx(loss(student, teacher, mask).total.item())
    assert wide[0].grad.isfinite().all()


def test_what_one_of_them_never_says():
    """p = (1, 0) and q = (½, ½): KL(p ‖ q) = log 2, KL(q ‖ p) = ∞; the Jensen–Shannon divergence stays finite."""
    sure, open_ = torch.tensor([[[0.0, -math.inf]]], dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64)
    assert forward_kl(open_, sure, ONE).total.item() == pytest.approx(math.log(2))
    assert reverse_kl(sure, open_, ONE).total.item() == pytest.approx(math.log(2))
    assert forward_kl(sure, open_, ONE).total.item() == math.inf
    for student, teacher in ((sure, open_), (open_, sure)):
        student = student.clone().requires_grad_()
        found = generalized_jsd(student, teacher, ONE)
        found.total.backward()
        expected = 0.5 * math.log(4 / 3) + 0.5 * (0.5 * math.log(2 / 3) + 0.5 * math.log(2))
        assert found.total.item() == pytest.approx(expected)
        assert student.grad.isfinite().all()


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, generalized_jsd])
def test_masked_garbage_changes_nothing(loss):
    student, teacher, mask = logits(5)
    clean = loss(student, teacher, mask)
    student, teacher = (torch.where(mask[..., None], x, math.nan).requires_grad_() for x in (student, teacher))
    dirty = loss(student, teacher, mask)
    dirty.total.backward()
    assert dirty.total == clean.total
    assert dirty.metrics == clean.metrics
    assert (student.grad[~mask] == 0).all()
    assert student.grad.isfinite().all()
    nothing = loss(student, teacher, mask & False)
    assert (nothing.total.item(), nothing.weight.item()) == (0.0, 0.0)


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, generalized_jsd])
def test_half_precision_is_computed_in_float32(loss):
    student, teacher, mask = logits(6)
    student, teacher = student.bfloat16(), teacher.bfloat16()
    found = loss(student, teacher, mask)
    assert found.total.dtype == torch.float32
    assert found.total == loss(student.float(), teacher.float(), mask).total


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, generalized_jsd])
def test_wrong_shapes_and_parameters_are_named(loss):
    x, mask, place = torch.zeros(2, 3, 4), torch.ones(2, 3) > 0, loss.__name__
    with pytest.raises(ShapeError, match=rf"{place}\(student\): expected \[B, T, V\], found \(2, 3\)"):
        loss(x[..., 0], x[..., 0], mask)
    with pytest.raises(ShapeError, match=rf"{place}\(teacher\): expected shape \(2, 3, 4\)"):
        loss(x, x[..., :2], mask)
    with pytest.raises(ShapeError, match=rf"{place}\(mask\): expected shape \(2, 3\)"):
        loss(x, x, mask[:1])
    with pytest.raises(ConfigError, match=r"temperature: expected more than 0"):
        loss(x, x, mask, temperature=0.0)


def test_a_wrong_shape_of_opd_is_named():
    x = case(1)
    for name in ("advantage", "mask"):
        inputs = {"logprob": x.logprob, "advantage": x.advantage, "mask": x.mask}
        inputs[name] = inputs[name][:1]
        with pytest.raises(ShapeError, match=rf"opd\({name}\)"):
            opd(**inputs)
    for beta in (-0.1, 1.1):
        with pytest.raises(ConfigError, match=r"beta: expected a value in \[0, 1\]"):
            generalized_jsd(STUDENT, TEACHER, ONE, beta=beta)

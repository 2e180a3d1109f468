import math
import typing

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import two_policies

from rlinf.algorithms.losses.kl import (
    KLType,
    check_kl_type,
    kl_loss,
    kl_penalty,
    reward_with_kl,
)
from rlinf.algorithms.losses.ratio import at_granularity
from rlinf.algorithms.losses.terms import Aggregation
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import merge

KINDS = typing.get_args(KLType)
HALF = math.log(2.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("k1", HALF), ("abs", HALF), ("k2", HALF**2 / 2), ("k3", HALF - 0.5), ("low_var_kl", HALF - 0.5)],
)
def test_by_hand(kind, expected):
    """π(a) = 1 and π_ref(a) = ½, so log π − log π_ref = log 2 and the ratio of k3 is ½."""
    one, half = torch.zeros(1, dtype=torch.float64), torch.tensor([-HALF], dtype=torch.float64)
    assert kl_penalty(one, half, kind).item() == pytest.approx(expected)
    swapped = {"k1": -HALF, "abs": HALF, "k2": HALF**2 / 2, "k3": 1 - HALF, "low_var_kl": 1 - HALF}
    assert kl_penalty(half, one, kind).item() == pytest.approx(swapped[kind])


def test_names_of_one_estimate():
    pair = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    for name, other in (("kl", "k1"), ("mse", "k2"), ("kl+", "k1+")):
        assert torch.equal(kl_penalty(*pair, name), kl_penalty(*pair, other))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.sampled_from([0.1, 1.0, 15.0]))
def test_equals_the_reference(seed, kind, scale):
    logprob, logprob_ref = torch.tensor(scale * np.random.default_rng(seed).normal(size=(2, 3, 2)))
    expected = reference.kl_penalty(logprob.tolist(), logprob_ref.tolist(), kind)
    np.testing.assert_allclose(kl_penalty(logprob, logprob_ref, kind), np.array(expected), rtol=1e-12, atol=1e-12)


def test_the_clamps_of_k3():
    far = torch.tensor([0.0, 0.0, -1000.0, 2.0], requires_grad=True)
    value = kl_penalty(far, torch.tensor([-9.0, -30.0, 1000.0, 4.0]), "low_var_kl")
    assert value.tolist() == pytest.approx([8.0 + math.exp(-9.0), 10.0, 10.0, math.exp(2.0) - 3.0])
    value.sum().backward()
    assert far.grad.tolist() == pytest.approx([1.0 - math.exp(-9.0), 0.0, 0.0, 1.0 - math.exp(2.0)])
    assert kl_penalty(torch.zeros(1), torch.tensor([3.0]), "k3").item() == pytest.approx(math.exp(3.0) - 4.0)


P = torch.tensor([0.6, 0.3, 0.06, 0.04], dtype=torch.float64)
Q = torch.tensor([0.2, 0.2, 0.3, 0.3], dtype=torch.float64)


def exact(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize(("policy", "ref"), [(P, Q), (Q, P)])
def test_samples_of_the_policy_estimate_its_divergence_from_the_reference(kind, policy, ref):
    """10⁵ samples of π come within 1 % of KL(π ‖ π_ref), which is far from KL(π_ref ‖ π)."""
    actions = torch.multinomial(policy, 100_000, replacement=True, generator=torch.Generator().manual_seed(0))
    found = kl_penalty(policy.log()[actions], ref.log()[actions], kind).mean().item()
    assert found == pytest.approx(exact(policy, ref), rel=0.02)
    assert abs(found - exact(ref, policy)) > 0.1


@pytest.mark.parametrize("kind", ["k1", "k3", "low_var_kl", "k1+", "k3+", "low_var_kl+"])
def test_expectations_are_exact(kind):
    """Summed over all actions with their probabilities, the estimate is KL(π ‖ π_ref)."""
    assert (P * kl_penalty(P.log(), Q.log(), kind)).sum().item() == pytest.approx(exact(P, Q), rel=1e-12)


@pytest.mark.parametrize("kind", ["k2", "k1+", "k3+", "abs+"])
def test_the_gradient_of_k2_is_that_of_the_divergence(kind):
    logits = P.log().clone().requires_grad_()
    log_p = logits.log_softmax(-1)
    (log_p.exp() * (log_p - Q.log())).sum().backward()
    expected, logits.grad = logits.grad, None
    (P * kl_penalty(logits.log_softmax(-1), Q.log(), kind)).sum().backward()
    torch.testing.assert_close(logits.grad, expected)


def test_straight_through_keeps_the_value():
    pair = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    for kind in ("k1", "abs", "k3", "low_var_kl"):
        assert torch.equal(kl_penalty(*pair, f"{kind}+"), kl_penalty(*pair, kind))


def test_equal_policies_have_no_divergence():
    logprob = torch.randn(2, 3)
    for kind in KINDS:
        assert torch.equal(kl_penalty(logprob, logprob, kind), torch.zeros(2, 3))


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3", "low_var_kl"])
def test_gradients_against_finite_differences(kind):
    pair = torch.randn(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x[0], x[1], kind), [pair])


@settings(max_examples=25)
@given(
    st.tuples(*[st.integers(1, 3)] * 4),
    st.integers(2, 4),
    st.booleans(),
    st.sampled_from(KINDS),
    st.sampled_from(["token-mean", "seq-mean-token-mean"]),
    st.integers(0, 10_000),
)
def test_the_loss_equals_the_reference(shape, axes, joint, kind, mode, seed):
    logprob, logprob_ref, mask = two_policies(shape[:axes], seed)
    logprob_ref = at_granularity(logprob_ref, "chunk_level") if joint else logprob_ref
    before = logprob.clone(), logprob_ref.clone()
    found = kl_loss(logprob, logprob_ref, mask, kind=kind, aggregation=Aggregation(mode))
    total, weight = reference.kl_loss(logprob.tolist(), logprob_ref.tolist(), mask.tolist(), kind, mode)
    assert (found.total.item(), found.weight.item()) == (pytest.approx(total, abs=1e-12), weight)
    decisions = reference.kl_loss(logprob.tolist(), logprob_ref.tolist(), mask.tolist(), kind)
    assert found.metrics["kl_ref"].parts == pytest.approx(decisions, abs=1e-12)
    assert torch.equal(logprob, before[0])
    assert torch.equal(logprob_ref, before[1])


def test_the_estimates_of_finer_references_are_averaged_and_those_of_coarse_ones_see_the_sum():
    logprob = torch.tensor([[[0.0, -1.0]]])
    assert kl_loss(logprob, torch.tensor([[[-3.0, -2.0]]]), torch.tensor([[True]]), kind="k1").total.item() == 2.0
    assert kl_loss(logprob, torch.tensor([[-5.0]]), torch.tensor([[True]]), kind="k1").total.item() == 4.0
    assert kl_loss(logprob, torch.tensor([[-5.0]]), torch.tensor([[True]]), kind="k2").total.item() == 8.0


def test_the_default_is_k3():
    logprob, logprob_ref, mask = two_policies((2, 3), 0)
    assert kl_loss(logprob, logprob_ref, mask) == kl_loss(logprob, logprob_ref, mask, kind="k3")
    assert not torch.equal(kl_loss(logprob, logprob_ref, mask).total, kl_loss(logprob, logprob_ref, mask, kind="k1").total)


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_where_masked(kind):
    logprob, logprob_ref, mask = two_policies((3, 3, 2), 1)
    for garbage in (torch.nan, torch.inf, -torch.inf):
        leaf = torch.where(mask[..., None], logprob, garbage).requires_grad_()
        output = kl_loss(leaf, torch.where(mask[..., None], logprob_ref, garbage), mask, kind=kind)
        output.total.backward()
        assert torch.equal(output.total, kl_loss(logprob, logprob_ref, mask, kind=kind).total)
        assert (leaf.grad[~mask] == 0).all()


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from(["k2", "k3"]))
def test_the_split_changes_no_gradient(seed, sizes, kind):
    logprob, logprob_ref, mask = two_policies((sum(sizes), 3), seed)

    def gradient(pieces):
        leaf = logprob.clone().requires_grad_()
        outputs = [
            kl_loss(p, q, m, kind=kind) for p, q, m in zip(*(x.split(pieces) for x in (leaf, logprob_ref, mask)), strict=True)
        ]
        sum(output.total for output in outputs).backward()
        return leaf.grad / sum(output.weight for output in outputs).clamp(min=1), merge(output.metrics for output in outputs)

    (expected, metrics), (found, merged) = gradient([sum(sizes)]), gradient(sizes)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert merged["kl_ref"].parts == pytest.approx(metrics["kl_ref"].parts)


def test_reward_by_hand():
    reward = torch.tensor([[1.0, 0.0, 5.0]])
    logprob, logprob_ref = torch.tensor([[-1.0, -2.0, torch.nan]]), torch.tensor([[-3.0, -1.0, torch.nan]])
    found = reward_with_kl(reward, logprob.requires_grad_(), logprob_ref, torch.tensor([[True, True, False]]), beta=0.1)
    assert found.tolist() == [pytest.approx([0.8, 0.1, 5.0])]
    assert not found.requires_grad
    assert reward.tolist() == [[1.0, 0.0, 5.0]]


@settings(max_examples=30)
@given(st.tuples(st.integers(1, 3), st.integers(1, 4)), st.sampled_from(KINDS), st.floats(0, 2), st.integers(0, 10_000))
def test_reward_equals_the_reference(shape, kind, beta, seed):
    logprob, logprob_ref, mask = two_policies(shape, seed)
    reward = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = reward_with_kl(reward, logprob, logprob_ref, mask, beta=beta, kind=kind)
    lists = (x.tolist() for x in (reward, logprob, logprob_ref, mask))
    np.testing.assert_allclose(found, reference.reward_with_kl(*lists, beta, kind), atol=1e-12)


def test_half_precision_in_single_out():
    half = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16)
    assert kl_penalty(half, half - 1, "k3").dtype == torch.float32
    output = kl_loss(half[None], half[None] - 1, torch.ones(1, 2, dtype=torch.bool))
    assert output.total.item() == pytest.approx(2 * math.exp(-1.0))
    assert output.total.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kl_penalty(torch.zeros(1), torch.zeros(1), "k3k"), r"kl_penalty\(kind\): no estimate 'k3k'. Did you mean 'k3'"),
        (lambda: check_kl_type("low_var", place="kl_type"), r"kl_type: no estimate 'low_var'. Did you mean 'low_var_kl'"),
        (lambda: reward_with_kl(*[torch.zeros(1, 1)] * 4, beta=-1.0), "beta: expected"),
    ],
)
def test_parameters_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: kl_penalty(x, x[:1], "k1"), r"kl_penalty\(logprob_ref\)"),
        (lambda x: kl_loss(x[0], x, x), r"kl_loss\(logprob\): expected \[B, T\]"),
        (lambda x: kl_loss(x[..., None, None, None], x, x), r"kl_loss\(logprob\): expected \[B, T\]"),
        (lambda x: kl_loss(x, x, x[:1]), r"kl_loss\(mask\)"),
        (lambda x: kl_loss(x, x[:1], x), r"kl_loss\(logprob_ref\)"),
        (lambda x: reward_with_kl(x, x[:1], x, x, beta=1.0), r"reward_with_kl\(logprob\)"),
        (lambda x: reward_with_kl(x, x, x[:1], x, beta=1.0), r"reward_with_kl\(logprob_ref\)"),
        (lambda x: reward_with_kl(x, x, x, x[:1], beta=1.0), r"reward_with_kl\(mask\)"),
    ],
)
def test_shapes_are_checked(make, message):
    with pytest.raises(ShapeError, match=message):
        make(torch.ones(2, 3))

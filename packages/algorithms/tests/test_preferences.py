"""DPO, and the losses OPMD and VESPO."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, case, expect_same

from rlinf.algorithms import policy_loss
from rlinf.algorithms.losses.policy.reinforce import OPMD, opmd, reinforce
from rlinf.algorithms.losses.policy.vespo import VESPO, vespo
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.preferences import dpo
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means, merge


def test_dpo_by_hand():
    """Log-ratios 3 and −1 with β ½: rewards 1.5 and −0.5, margin 2; the gradient is −β σ(−2) and its opposite."""
    chosen = torch.tensor([-7.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-6.0], dtype=torch.float64, requires_grad=True)
    output = dpo(chosen, rejected, torch.tensor([-10.0]), torch.tensor([-5.0]), beta=0.5)
    output.total.backward()
    s = 1 / (1 + math.exp(2))
    assert (output.total.item(), output.weight.item()) == (pytest.approx(-math.log(1 - s)), 1.0)
    assert (chosen.grad.item(), rejected.grad.item()) == (pytest.approx(-0.5 * s), pytest.approx(0.5 * s))
    rewards = {"reward_chosen": 1.5, "reward_rejected": -0.5, "reward_margin": 2.0, "reward_accuracy": 1.0}
    assert means(output.metrics) == pytest.approx({"dpo_loss": output.total.item(), **rewards})
    smooth = dpo(chosen, rejected, torch.tensor([-10.0]), torch.tensor([-5.0]), beta=0.5, label_smoothing=0.25)
    assert smooth.total.item() == pytest.approx(-0.75 * math.log(1 - s) - 0.25 * math.log(s))


PARTS = slice(0, 1), slice(1, 9)


def pairs(seed, rows, scale):
    g = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(rows, generator=g, dtype=torch.float64) for _ in range(4)], torch.rand(rows, generator=g) < 0.7


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.sampled_from([0.1, 10.0, 1e4]),
    st.sampled_from([0.05, 1.0]),
    st.sampled_from([0.0, 0.3, 0.5]),
    st.booleans(),
)
def test_dpo_is_what_the_reference_says_and_adds_up(seed, rows, scale, beta, smoothing, masked):
    tensors, mask = pairs(seed, rows, scale)
    options = {"beta": beta, "label_smoothing": smoothing}
    found = dpo(*tensors, **options, mask=mask if masked else None)
    expect_same(found, reference.dpo(*(x.tolist() for x in tensors), **options, mask=mask.tolist() if masked else None))
    parts = [
        dpo(*(x[rows] for x in tensors), **options, mask=mask[rows] if masked else None) for rows in (slice(0, 1), slice(1, 9))
    ]
    torch.testing.assert_close(sum(part.total for part in parts), found.total)
    assert sum(part.weight for part in parts) == found.weight
    assert means(merge(part.metrics for part in parts)) == pytest.approx(means(found.metrics), nan_ok=True)


def test_dpo_knows_no_padding_and_starts_at_log_2():
    (chosen, rejected, ref_chosen, ref_rejected), _ = pairs(3, 4, 5.0)
    mask = torch.tensor([True, False, True, True])
    leaf = torch.where(mask, chosen, torch.nan).requires_grad_()
    found = dpo(leaf, torch.where(mask, rejected, torch.inf), ref_chosen, ref_rejected, mask=mask)
    found.total.backward()
    assert leaf.grad[1] == 0.0
    assert leaf.grad.isfinite().all()
    torch.testing.assert_close(found.total, dpo(chosen, rejected, ref_chosen, ref_rejected, mask=mask).total)
    assert dpo(chosen, rejected, chosen, rejected).total.item() == pytest.approx(4 * math.log(2))
    assert dpo(chosen.bfloat16(), rejected, ref_chosen, ref_rejected).total.isfinite()


def test_opmd_by_hand_and_by_the_reference():
    logprob = torch.tensor([[-2.0, -1.0]], requires_grad=True)
    output = opmd(logprob, torch.tensor([[3.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool), tau=0.5)
    output.total.backward()
    assert (output.total.item(), logprob.grad.tolist()) == (pytest.approx(5.0 / 1.5), [[-2.0, pytest.approx(1 / 1.5)]])


@settings(max_examples=30)
@given(CASES, st.sampled_from([0.0, 0.5, 4.0]), st.sampled_from(AGGREGATIONS))
def test_opmd_is_what_the_reference_says(x, tau, aggregation):
    logprob, _, _, advantage, mask = x.lists()
    found = opmd(x.logprob, x.advantage, x.mask, tau=tau, aggregation=aggregation)
    expect_same(found, reference.opmd(logprob, advantage, mask, tau=tau, aggregation=aggregation))
    torch.testing.assert_close((1 + tau) * found.total, reinforce(x.logprob, x.advantage, x.mask, aggregation=aggregation).total)


@pytest.mark.parametrize(("advantage", "c1", "c2"), [(1.5, 2.0, 3.0), (-1.5, 3.0, 2.0)])
def test_vespo_by_hand(advantage, c1, c2):
    """Ratios 2 and ¼ have the product ½, whatever is masked; the weight is a constant, and 1 at W = 1."""
    old = torch.tensor([[-1.0, -1.0, 5.0]], dtype=torch.float64)
    log = torch.tensor([[math.log(2.0), math.log(0.25), torch.nan]], dtype=torch.float64)
    new = (old + log).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    output = vespo(new, old, torch.full((1, 3), advantage, dtype=torch.float64), mask)
    output.total.backward()
    weight = 0.5**c1 * math.exp(c2 * 0.5)
    assert output.total.item() == pytest.approx(-weight * advantage * (-2.0 - math.log(2.0)))
    assert new.grad[0].tolist() == pytest.approx([-weight * advantage] * 2 + [0.0])
    found = means(output.metrics)
    assert (found["sequence_weight"], found["sequence_log_ratio"]) == (pytest.approx(weight), pytest.approx(-math.log(2.0)))
    on_policy = vespo(old, old, torch.full((1, 3), advantage, dtype=torch.float64), mask)
    assert on_policy.total.item() == pytest.approx(2.0 * advantage)
    far = vespo(old + 1e4, old, torch.full((1, 3), advantage, dtype=torch.float64), mask)
    assert far.total.item() == 0.0


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.0, 1.5]), st.sampled_from(AGGREGATIONS))
def test_vespo_is_what_the_reference_says(x, c1, c2, aggregation):
    logprob, old, _, advantage, mask = x.lists()
    options = {"c1_pos": c1, "c2_pos": c2, "c1_neg": c1 + 1, "c2_neg": c2 + 0.5, "aggregation": aggregation}
    found = vespo(x.logprob, x.logprob_old, x.advantage, x.mask, **options)
    expect_same(found, reference.vespo(logprob, old, advantage, mask, **options), rel=1e-7)


def test_by_name():
    x = case(5)
    tensors = {"logprob": x.logprob, "logprob_old": x.logprob_old, "advantage": x.advantage, "mask": x.mask}
    for name, found, options in (
        ("opmd", opmd(x.logprob, x.advantage, x.mask, tau=0.3), {"tau": 0.3}),
        ("vespo", vespo(**tensors, c1_neg=1.0), {"c1_neg": 1.0}),
    ):
        assert policy_loss(loss_type=name, **tensors, **options)[0].item() == pytest.approx((found.total / found.weight).item())
    with pytest.raises(ShapeError, match=r"VESPO\(logprob_old\): expected a tensor"):
        VESPO().of(LossInputs(mask=x.mask, logprob=x.logprob, advantage=x.advantage))


@pytest.mark.parametrize("bad", [-0.1, math.nan])
@pytest.mark.parametrize("name", ["beta", "label_smoothing", "tau", "c1_pos", "c2_pos", "c1_neg", "c2_neg"])
def test_parameters_are_checked(name, bad):
    x, calls = case(5), []
    if name in ("beta", "label_smoothing"):
        calls.append(lambda **k: dpo(*pairs(1, 2, 1.0)[0], **k))
    elif name == "tau":
        calls += [OPMD, lambda **k: opmd(x.logprob, x.advantage, x.mask, **k)]
    else:
        calls += [VESPO, lambda **k: vespo(x.logprob, x.logprob_old, x.advantage, x.mask, **k)]
    for call in calls:
        with pytest.raises(ConfigError, match=f"^{name}: expected "):
            call(**{name: bad})


def test_shapes_are_checked():
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(ShapeError, match=r"dpo\(logprob_chosen\): expected \[B\]"):
        dpo(*[one[None]] * 4)
    for i, name in enumerate(("logprob_rejected", "logprob_ref_chosen", "logprob_ref_rejected")):
        tensors = [two] * 4
        tensors[i + 1] = one
        with pytest.raises(ShapeError, match=rf"dpo\({name}\)"):
            dpo(*tensors)
    with pytest.raises(ShapeError, match=r"dpo\(mask\)"):
        dpo(*[two] * 4, mask=one > 0)

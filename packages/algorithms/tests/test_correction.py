import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import two_policies

from rlinf.algorithms.advantages.per_decision import opd_advantage
from rlinf.algorithms.losses.correction import (
    Correction,
    CorrectionConfig,
    check_bounds,
    corrected,
    geometric_rejection,
    masked_importance,
    rejection,
    self_normalised,
    truncated_importance,
    veto,
)
from rlinf.algorithms.losses.policy.decoupled import interpolated_proximal
from rlinf.algorithms.losses.rollout_gap import mismatch
from rlinf.algorithms.losses.terms import Terms
from rlinf.core.config import read
from rlinf.core.errors import ConfigError, ShapeError

LEVELS = ["token", "sequence", "geometric"]
RATIO = torch.tensor([[0.25, 1.0, 3.0], [8.0, 2.0, 7.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])
ZERO = torch.zeros(2, 3, dtype=torch.float64)
ROWS = {"sequence": ([0.75] * 3, [16.0, 16.0, 0.0]), "geometric": ([0.75 ** (1 / 3)] * 3, [4.0, 4.0, 0.0])}


def mean(found, name, mask=MASK):
    return found.observed[name].sum().item() / mask.sum().item()


def test_truncated_importance_by_hand():
    found = truncated_importance(RATIO.log(), ZERO, MASK)
    torch.testing.assert_close(found.weight, torch.tensor([[0.25, 1.0, 2.0], [2.0, 2.0, 0.0]], dtype=torch.float64))
    assert torch.equal(found.keep, MASK)
    assert torch.equal(found.factor, found.weight)
    assert mean(found, "rollout_weight") == pytest.approx(7.25 / 5)
    assert mean(found, "rollout_weight_square") == pytest.approx((0.0625 + 1 + 4 + 4 + 4) / 5)
    assert found.observed["rollout_truncated"].tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    low = truncated_importance(RATIO.log(), ZERO, MASK, low=0.5, high=100.0)
    assert low.weight[0, 0] == 0.5
    assert low.observed["rollout_truncated"].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_truncated_rows_by_hand(level):
    found = truncated_importance(RATIO.log(), ZERO, MASK, level=level, high=100.0)
    torch.testing.assert_close(found.weight, torch.tensor(ROWS[level], dtype=torch.float64))


def test_masked_importance_by_hand():
    found = masked_importance(RATIO.log(), ZERO, MASK)
    assert found.keep.tolist() == [[False, True, True], [False, True, False]]
    torch.testing.assert_close(found.weight, torch.where(MASK, RATIO, 0.0))
    torch.testing.assert_close(found.factor, torch.where(found.keep, RATIO, 0.0))
    assert found.observed["rollout_dropped"].tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert mean(found, "rollout_weight") == pytest.approx(6.0 / 5)
    assert mean(found, "rollout_weight_square") == pytest.approx((1 + 9 + 4) / 5)


def test_bounds_belong_to_the_inside():
    found = masked_importance(torch.zeros(1, 1), torch.zeros(1, 1), MASK[:1, :1], low=1.0, high=1.0)
    assert found.keep.item()
    assert rejection(torch.zeros(1, 1), torch.zeros(1, 1), MASK[:1, :1], level="token", low=1.0, high=1.0).keep.item()


def test_rejection_leaves_weight_one():
    found = rejection(RATIO.log(), ZERO, MASK, level="token", low=0.5, high=5.0)
    assert found.keep.tolist() == [[False, True, True], [False, True, False]]
    assert torch.equal(found.weight, MASK.double())
    assert found.observed["rollout_dropped"].tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("level", LEVELS)
def test_the_bounds_may_be_those_of_the_inverse(level):
    """As verl's: a row whose π_rollout / π_train is 4 is above a bound of 2, and below one of its inverse."""
    train, rollout, mask = torch.zeros(1, 1), torch.full((1, 1), math.log(4.0)), MASK[:1, :1]
    for low, high, inverse in ((0.5, 2.0, False), (0.2, 2.0, False), (0.5, 5.0, True), (0.2, 0.3, True)):
        kept = rejection(train, rollout, mask, level=level, low=low, high=high, inverse=inverse).keep.item()
        assert kept == (low <= (4.0 if inverse else 0.25) <= high)
    assert geometric_rejection(train, rollout, mask, low=3.0, high=5.0, inverse=True).keep.item()
    for config in (
        CorrectionConfig(mode="reject", level=level, low=3.0, high=5.0, inverse=True),
        CorrectionConfig(level=level, geometric_low=3.0, geometric_high=5.0, inverse=True),
    ):
        assert config.of(train, rollout, mask).keep.item()
    with pytest.raises(ConfigError, match="inverse: expected something that rejects, found mode 'truncate' alone"):
        CorrectionConfig(inverse=True)


def test_what_is_impossible_for_both_has_a_ratio_of_one():
    """−∞ and −∞ is no NaN; −∞ on one side is the bound."""
    never, mask = torch.tensor([[-math.inf, -math.inf, -1.0]]), MASK[:1]
    other = torch.tensor([[-math.inf, -1.0, -math.inf]])
    found = truncated_importance(never, other, mask, high=2.0)
    torch.testing.assert_close(found.weight, torch.tensor([[1.0, math.exp(-20.0), 2.0]]))
    assert all(x.isfinite().all() for x in mismatch(never[:, :1], other[:, :1], mask[:, :1]).values())
    assert veto(never[:, :1], other[:, :1], mask[:, :1], threshold=1e-4).keep.all()
    assert opd_advantage(never, other).tolist() == [[0.0, math.inf, -math.inf]]
    version = torch.zeros(1, 1, dtype=torch.long)
    assert interpolated_proximal(never[:, :1], other[:, :1], version, version_now=3).isneginf().all()


def test_geometric_rejection_drops_rows_by_their_mean():
    kept = geometric_rejection(RATIO.log(), ZERO, MASK, low=0.9, high=3.9)
    assert kept.keep.tolist() == [[True, True, True], [False, False, False]]
    assert kept.observed["rollout_dropped"].tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    kept = geometric_rejection(RATIO.log(), ZERO, MASK, low=0.95, high=4.1)
    assert kept.keep.tolist() == [[False, False, False], [True, True, False]]


def test_veto_drops_a_row_for_one_decision():
    found = veto(RATIO.log(), ZERO, MASK, threshold=0.5)
    assert found.keep.tolist() == [[False, False, False], [True, True, False]]
    assert torch.equal(found.weight, MASK.double())
    assert found.observed["rollout_vetoed"].tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert veto(torch.zeros(1, 1), torch.zeros(1, 1), MASK[:1, :1], threshold=1.0).keep.item()


def test_mismatch_by_hand():
    found = mismatch(RATIO.log(), ZERO, MASK)
    ratio = torch.where(MASK, RATIO, 1.0)
    torch.testing.assert_close(found["rollout_kl"], -ratio.log())
    torch.testing.assert_close(found["rollout_k3"], ratio - 1 - ratio.log())
    torch.testing.assert_close(found["rollout_chi2"], ratio.square() - 1)
    far = mismatch(torch.tensor([[1000.0]]), torch.zeros(1, 1), MASK[:1, :1])
    assert [round(math.log(far[name].item())) for name in ("rollout_k3", "rollout_chi2")] == [20, 40]
    assert far["rollout_kl"].item() == -1000.0


def test_its_mean_is_the_divergence_of_the_rollout_from_the_trainer():
    """Summed over all actions with the probabilities of the rollout."""
    rollout = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    train = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    found = mismatch(train.log(), rollout.log(), torch.ones(1, 3, dtype=torch.bool))
    kl = (rollout * (rollout / train).log()).sum()
    torch.testing.assert_close((rollout * found["rollout_kl"]).sum(), kl)
    torch.testing.assert_close((rollout * found["rollout_k3"]).sum(), kl)
    torch.testing.assert_close((rollout * found["rollout_chi2"]).sum(), (train.square() / rollout).sum() - 1)


def test_corrections_combine():
    one = truncated_importance(RATIO.log(), ZERO, MASK)
    two = veto(RATIO.log(), ZERO, MASK, threshold=0.5)
    both = one & two & Correction(torch.full_like(ZERO, 3.0), MASK)
    torch.testing.assert_close(both.weight, 3.0 * one.weight)
    assert torch.equal(both.keep, two.keep)
    assert set(both.observed) == {"rollout_weight", "rollout_weight_square", "rollout_truncated", "rollout_vetoed"}
    torch.testing.assert_close(both.factor, torch.tensor([[0.0, 0.0, 0.0], [6.0, 6.0, 0.0]], dtype=torch.float64))


def test_log_ratios_stay_within_20():
    train = torch.tensor([[500.0, -500.0]])
    found = masked_importance(train, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), low=0.0, high=math.inf)
    torch.testing.assert_close(found.weight, torch.tensor([[math.exp(20.0), math.exp(-20.0)]]))
    assert found.keep.all()
    for level in ("sequence", "geometric"):
        found = truncated_importance(train[:, :1], torch.zeros(1, 1), MASK[:1, :1], level=level, high=math.inf)
        torch.testing.assert_close(found.weight, torch.tensor([[math.exp(20.0)]]))


def test_self_normalised_by_hand():
    found = truncated_importance(RATIO.log(), ZERO, MASK)
    even = self_normalised(found, MASK)
    torch.testing.assert_close(even.weight, found.weight * 5 / 7.25)
    assert even.keep is found.keep
    assert even.observed is found.observed
    rows = self_normalised(found, MASK, by_row=True)
    torch.testing.assert_close(rows.weight, found.weight * 2 / (3.25 / 3 + 2.0))
    nothing = Correction(torch.zeros(2, 3), MASK)
    for mask in (MASK, MASK & False):
        assert torch.equal(self_normalised(nothing, mask).weight, torch.zeros(2, 3))


def test_self_normalised_over_ranks():
    found = truncated_importance(RATIO.log(), ZERO, MASK)
    calls = []

    def all_reduce(x):
        calls.append(x)
        return 2.0 * x

    assert torch.equal(self_normalised(found, MASK, all_reduce=all_reduce).weight, self_normalised(found, MASK).weight)
    assert calls[0].tolist() == [7.25, 5.0]
    other = torch.tensor([4.75, 1.0], dtype=torch.float64)
    torch.testing.assert_close(self_normalised(found, MASK, all_reduce=lambda x: x + other).weight, found.weight / 2)


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.integers(1, 2))


def same(found, expected):
    np.testing.assert_allclose(found.weight, expected[0], atol=1e-12, rtol=1e-12)
    assert found.keep.tolist() == expected[1]


@settings(max_examples=40)
@given(shapes, st.integers(2, 4), st.sampled_from(LEVELS), st.floats(0, 1), st.floats(1, 4), st.integers(0, 10_000))
def test_equals_the_reference(shape, axes, level, low, high, seed):
    tensors = two_policies(shape[:axes], seed)
    before = [x.clone() for x in tensors]
    lists = [x.tolist() for x in tensors]
    same(truncated_importance(*tensors, level=level, low=low, high=high), reference.truncated_importance(*lists, level, low, high))
    same(masked_importance(*tensors, level=level, low=low, high=high), reference.masked_importance(*lists, level, low, high))
    same(rejection(*tensors, level=level, low=low, high=high), reference.rejection(*lists, level, low, high))
    same(geometric_rejection(*tensors, low=low, high=high), reference.geometric_rejection(*lists, low, high))
    same(veto(*tensors, threshold=0.05 + 0.9 * low), reference.veto(*lists, 0.05 + 0.9 * low))
    weights = truncated_importance(*tensors, level=level)
    for by_row in (False, True):
        expected = reference.self_normalised(weights.weight.tolist(), lists[2], by_row)
        np.testing.assert_allclose(self_normalised(weights, tensors[2], by_row=by_row).weight, expected, atol=1e-12)
    for name, value in reference.mismatch(*lists).items():
        np.testing.assert_allclose(mismatch(*tensors)[name], value, atol=1e-12, rtol=1e-12)
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))


ALL = [
    lambda *x: truncated_importance(*x, level="sequence"),
    lambda *x: masked_importance(*x, level="geometric"),
    lambda *x: rejection(*x, level="token", low=0.5, high=2.0),
    lambda *x: geometric_rejection(*x, low=0.5, high=2.0),
    lambda *x: veto(*x, threshold=0.1),
    CorrectionConfig(geometric_low=0.5, geometric_high=2.0, veto=0.1).of,
]


@pytest.mark.parametrize("make", ALL)
def test_nothing_depends_on_what_is_masked_nor_on_other_rows(make):
    train, rollout, mask = two_policies((4, 3, 2), 5)
    train.requires_grad_()
    expected = make(train, rollout, mask)
    assert not expected.weight.requires_grad
    found = make(torch.where(mask[..., None], train, torch.nan), torch.where(mask[..., None], rollout, torch.inf), mask)
    assert torch.equal(found.weight, expected.weight)
    assert torch.equal(found.keep, expected.keep)
    assert not found.weight[~mask].any()
    assert not found.keep[~mask].any()
    for name, value in expected.observed.items():
        assert torch.equal(found.observed[name], value)
        assert not value[~mask].any()
    alone = make(train[2:3], rollout[2:3], mask[2:3])
    assert torch.equal(alone.weight, expected.weight[2:3])
    assert torch.equal(alone.keep, expected.keep[2:3])
    wide = [torch.cat([x, x], 1) for x in (train, rollout)]
    padded = make(*wide, torch.cat([mask, mask & False], 1))
    torch.testing.assert_close(padded.factor[:, :3], expected.factor)


@pytest.mark.parametrize("make", ALL)
def test_equal_engines_need_no_correction(make):
    train, _, mask = two_policies((4, 3), 5)
    for dtype in (torch.float32, torch.bfloat16):
        found = make(train.to(dtype), train.to(dtype), mask)
        assert torch.equal(found.factor, mask.float())


def test_the_configuration_says_what_is_applied():
    x = two_policies((4, 3), 5)
    for mode, function in (("truncate", truncated_importance), ("mask", masked_importance), ("reject", rejection)):
        found = CorrectionConfig(mode=mode, level="sequence", low=0.3, high=1.5).of(*x)
        expected = function(*x, level="sequence", low=0.3, high=1.5)
        assert torch.equal(found.factor, expected.factor)
        assert set(found.observed) == {*expected.observed, "rollout_kl", "rollout_k3", "rollout_chi2"}
    found = CorrectionConfig(geometric_low=0.5, geometric_high=1.5, veto=0.2).of(*x)
    expected = truncated_importance(*x) & geometric_rejection(*x, low=0.5, high=1.5) & veto(*x, threshold=0.2)
    assert torch.equal(found.factor, expected.factor)
    assert not torch.equal(found.keep, x[2])


def test_the_configuration_is_read_from_a_mapping():
    assert read(CorrectionConfig, {"mode": "mask", "low": 0.5, "high": 5}) == CorrectionConfig(mode="mask", low=0.5, high=5.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mode": "trunkate"}, r"mode: no mode 'trunkate'. Did you mean 'truncate'"),
        ({"level": "tokens"}, r"no level 'tokens'. Did you mean 'token'"),
        ({"low": -0.1}, "expected 0 <= low <= high, found -0.1 and 2"),
        ({"low": 3.0}, "expected 0 <= low <= high, found 3 and 2"),
        ({"geometric_low": 0.5}, "geometric_low: expected both bounds or none"),
        ({"geometric_low": 2.0, "geometric_high": 1.0}, "geometric_low: expected 0 <= low <= high"),
        ({"veto": 0.0}, r"veto: expected a value in \(0, 1\]"),
        ({"veto": 1.5}, r"veto: expected a value in \(0, 1\]"),
    ],
)
def test_parameters_are_checked(params, message):
    with pytest.raises(ConfigError, match=message):
        CorrectionConfig(**params)
    check_bounds("token", 0.0, 0.0, keys="x({})")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: truncated_importance(ZERO, ZERO[:1], MASK), r"truncated_importance\(logprob_rollout\)"),
        (lambda: truncated_importance(ZERO, ZERO, MASK[:1]), r"truncated_importance\(mask\)"),
        (lambda: masked_importance(ZERO[0], ZERO[0], MASK[0]), r"masked_importance\(logprob_train\): expected \[B, T\]"),
        (
            lambda: masked_importance(*[ZERO[..., None, None, None]] * 2, MASK),
            r"masked_importance\(logprob_train\): expected \[B, T\]",
        ),
        (lambda: rejection(ZERO, ZERO[:1], MASK, level="token", low=0.0, high=1.0), r"rejection\(logprob_rollout\)"),
        (lambda: veto(ZERO, ZERO[:1], MASK, threshold=0.1), r"veto\(logprob_rollout\)"),
        (lambda: mismatch(ZERO, ZERO[:1], MASK), r"mismatch\(logprob_rollout\)"),
        (lambda: self_normalised(Correction(ZERO, MASK), MASK[:1]), r"self_normalised\(mask\)"),
    ],
)
def test_shapes_are_checked(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize("call", [truncated_importance, masked_importance])
def test_bounds_out_of_order_name_the_function(call):
    with pytest.raises(ConfigError, match=rf"{call.__name__}\(low\): expected 0 <= low <= high, found 3 and 2"):
        call(ZERO, ZERO, MASK, low=3.0, high=2.0)
    with pytest.raises(ConfigError, match=r"veto: expected a value in \(0, 1\]"):
        veto(ZERO, ZERO, MASK, threshold=0.0)


def test_corrected_terms_multiply_loss_and_gradient_and_log_what_they_did():
    loss = torch.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    terms = Terms(loss, {"policy_loss": loss.detach(), "ratio": loss.detach()}, {"v": (loss.detach(), loss.detach())})
    weight, keep = torch.tensor([[3.0, 5.0, 7.0]]), torch.tensor([[True, False, True]])
    found = corrected(terms, Correction(weight, keep, {"rollout_weight": weight}))
    found.loss.sum().backward()
    assert found.loss.tolist() == [[3.0, 0.0, 28.0]]
    assert loss.grad.tolist() == [[3.0, 0.0, 7.0]]
    assert found.observed["policy_loss"].tolist() == [[3.0, 0.0, 28.0]]
    assert not found.observed["policy_loss"].requires_grad
    assert list(found.observed) == ["policy_loss", "ratio", "rollout_weight"]
    assert list(found.explained) == ["v"]

import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import CASES, case

from rlinf.algorithms.losses.correction import CorrectionConfig
from rlinf.algorithms.losses.filters import dynamic_sampling, opsm, overlong_filtering
from rlinf.algorithms.losses.policy.ppo import PPOClip
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.core.errors import ConfigError, ShapeError

# group 7 agrees on 1, group 3 differs with mean ½, group 5 agrees on 0, group 9 is alone, group 4 differs with mean ¾
SCORE = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.5, 1.0, 0.5])
GROUP = torch.tensor([7, 3, 5, 3, 7, 5, 9, 4, 4])


def kept(mask):
    return sorted(set(GROUP[mask].tolist()))


def test_dynamic_sampling_by_hand():
    assert dynamic_sampling(SCORE, GROUP).tolist() == [False, True, False, True, False, False, False, True, True]
    assert kept(dynamic_sampling(SCORE, GROUP, low=0.6)) == [4]
    assert kept(dynamic_sampling(SCORE, GROUP, high=0.6)) == [3]
    assert kept(dynamic_sampling(SCORE, GROUP, tolerance=0.5)) == [3]
    assert kept(dynamic_sampling(SCORE, GROUP, tolerance=0.4)) == [3, 4]


scores = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), st.integers(-2, 3)), max_size=12)
bound = st.none() | st.sampled_from([-0.5, 0.25, 0.5])


@settings(max_examples=40)
@given(scores, bound, bound, st.sampled_from([0.0, 0.25, 1.0]), FLOATS)
def test_equals_the_reference(rows, low, high, tolerance, dtype):
    low, high = (high, low) if low is not None and high is not None and low > high else (low, high)
    score, group = [s for s, _ in rows], [g for _, g in rows]
    tensors = torch.tensor(score, dtype=dtype), torch.tensor(group, dtype=torch.int64)
    before = [x.clone() for x in tensors]
    found = dynamic_sampling(*tensors, low=low, high=high, tolerance=tolerance)
    assert found.tolist() == reference.dynamic_sampling(score, group, low, high, tolerance)
    order = torch.arange(len(rows)).flip(0)
    flipped = dynamic_sampling(tensors[0][order], tensors[1][order], low=low, high=high, tolerance=tolerance)
    assert torch.equal(flipped, found[order])
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))


def test_overlong_by_hand():
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    truncated = torch.tensor([[False, True, False], [False, False, False], [False, True, False]])
    assert overlong_filtering(mask, truncated).tolist() == [[False] * 3, [True] * 3, [True, False, False]]


@settings(max_examples=25)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3), min_size=1, max_size=4))
def test_overlong_equals_the_reference(rows):
    mask, truncated = ([[pair[i] for pair in row] for row in rows] for i in (0, 1))
    assert overlong_filtering(torch.tensor(mask), torch.tensor(truncated)).tolist() == reference.overlong_filtering(mask, truncated)


def test_opsm_by_hand():
    """Rows whose mean log(π_old / π) is 1, 1 with a gain, ½, and −1: the policy left the first two, and only bad ones go."""
    old = torch.tensor([[-1.0, -1.0, 9.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [-3.0, -3.0, -3.0]])
    new = torch.tensor([[-3.0, -1.0, 9.0], [-2.0, -2.0, -2.0], [-1.5, -1.5, -1.5], [-2.0, -2.0, -2.0]])
    advantage = torch.tensor([[-1.0] * 3, [1.0, 1.0, -1.0], [-1.0] * 3, [-1.0] * 3])
    mask = torch.tensor([[True, True, False], [True] * 3, [True] * 3, [True] * 3])
    every = [True, True, True]
    assert opsm(new, old, advantage, mask, delta=0.6).tolist() == [[False] * 3, [True, True, False], every, every]
    assert opsm(new, old, advantage, mask, delta=0.4).tolist() == [[False] * 3, [True, True, False], [False] * 3, every]
    assert opsm(new, old, advantage, mask, delta=1.0).tolist() == mask.tolist()
    chunks = opsm(new[..., None].expand(4, 3, 2), old[..., None].expand(4, 3, 2), advantage, mask, delta=1.2)
    assert chunks.tolist() == [[False] * 3, [True, True, False], every, every]


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.0, 1e-4, 0.2, 3.0]))
def test_opsm_equals_the_reference_and_knows_no_other_row(x, delta):
    found = opsm(x.logprob, x.logprob_old, x.advantage, x.mask, delta=delta)
    logprob, old, _, advantage, mask = x.lists()
    assert found.tolist() == reference.opsm(logprob, old, advantage, mask, delta)
    alone = [opsm(*(y[i : i + 1] for y in (x.logprob, x.logprob_old, x.advantage, x.mask)), delta=delta) for i in range(len(mask))]
    assert torch.equal(torch.cat(alone), found)
    hole = ~x.mask
    new = x.logprob.masked_fill(hole.reshape(*hole.shape, *[1] * (x.logprob.dim() - 2)), torch.nan)
    assert torch.equal(opsm(new, x.logprob_old, x.advantage.masked_fill(hole, torch.nan), x.mask, delta=delta), found)
    assert torch.equal(opsm(x.logprob_old, x.logprob_old, x.advantage, x.mask, delta=delta), x.mask)


@pytest.mark.parametrize("correction", [None, CorrectionConfig(mode="mask")])
def test_a_loss_leaves_out_what_opsm_drops(correction):
    """Value and gradient, with the rollout's probabilities in either case; what is dropped still counts in the weight."""
    x = case(6, rows=8, scale=0.4)
    keep = opsm(x.logprob, x.logprob_old, x.advantage, x.mask, delta=0.1)
    assert 0 < keep.sum() < x.mask.sum()

    def of(advantage, **params):
        leaf = x.logprob.clone().requires_grad_()
        inputs = {name: getattr(x, name) for name in ("logprob_old", "logprob_proximal", "mask")}
        output = PPOClip(correction=correction, **params).of(LossInputs(logprob=leaf, advantage=advantage, **inputs))
        output.total.backward()
        return output, leaf.grad

    (found, slope), (expected, wanted) = of(x.advantage, opsm_delta=0.1), of(torch.where(keep, x.advantage, 0.0))
    torch.testing.assert_close((found.total, found.weight, slope), (expected.total, expected.weight, wanted))
    assert found.metrics["opsm_dropped"].parts == ((x.mask & ~keep).sum().item(), x.mask.sum().item())
    assert found.metrics["policy_loss"].mean == pytest.approx((found.total / found.weight).item())
    assert "opsm_dropped" not in expected.metrics


@pytest.mark.parametrize("bad", [-0.1, math.nan])
def test_a_delta_out_of_range_is_refused(bad):
    x = case(6)
    with pytest.raises(ConfigError, match=r"opsm\(delta\): expected at least 0"):
        opsm(x.logprob, x.logprob_old, x.advantage, x.mask, delta=bad)
    with pytest.raises(ConfigError, match=r"opsm_delta: expected at least 0"):
        PPOClip(opsm_delta=bad)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dynamic_sampling(SCORE[None], GROUP), ShapeError, r"dynamic_sampling\(score\): expected \[B\]"),
        (lambda: dynamic_sampling(SCORE, GROUP[1:]), ShapeError, r"dynamic_sampling\(group\)"),
        (lambda: overlong_filtering(SCORE, SCORE), ShapeError, r"overlong_filtering\(mask\): expected \[B, T\]"),
        (lambda: overlong_filtering(SCORE[None], SCORE), ShapeError, r"overlong_filtering\(truncated\)"),
        (lambda: opsm(SCORE[None], SCORE, SCORE, GROUP > 0, delta=0.0), ShapeError, r"opsm\(logprob_old\)"),
        (
            lambda: dynamic_sampling(SCORE, GROUP, tolerance=-1.0),
            ConfigError,
            r"\(tolerance\): expected .*, found -1",
        ),
        (lambda: dynamic_sampling(SCORE, GROUP, low=1.0, high=0.0), ConfigError, r"at most the upper bound 0, found 1"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

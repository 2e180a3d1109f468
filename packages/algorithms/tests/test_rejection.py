"""Rejection by divergences, and the perplexities of trainer and rollout engine."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import two_policies

from rlinf.algorithms import policy_loss
from rlinf.algorithms.losses.correction import CorrectionConfig, divergence_rejection, geometric_rejection
from rlinf.algorithms.losses.policy.ppo import PPOClip
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.algorithms.losses.rollout_gap import mismatch, perplexity
from rlinf.core.config import read
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means, merge

CRITERIA = ["token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"]
# log-ratios 1, −2 and 0 in one row, 2 in the other: k2 is ½, 2, 0 and 2; k3 is e − 2, e⁻² + 1, 0 and e² − 3
D = torch.tensor([[1.0, -2.0, 0.0], [2.0, 9.0, 9.0]], dtype=torch.float64)
ZERO = torch.zeros_like(D)
MASK = torch.tensor([[True, True, True], [True, False, False]])
K3 = [math.e - 2, math.exp(-2) + 1, 0.0, math.exp(2) - 3]


@pytest.mark.parametrize(
    ("criterion", "threshold", "first", "second"),
    [
        ("token_k2", 1.0, [True, False, True], False),
        ("token_k2", 2.0, [True, True, True], True),
        ("token_k3", 1.0, [True, False, True], False),
        ("token_k3", 2.0, [True, True, True], False),
        ("seq_sum_k2", 2.25, [False] * 3, True),
        ("seq_sum_k2", 2.5, [True] * 3, True),
        ("seq_sum_k3", K3[0] + K3[1] + 0.01, [True] * 3, False),
        ("seq_sum_k3", K3[0] + K3[1] - 0.01, [False] * 3, False),
        ("seq_mean_k2", 1.0, [True] * 3, False),
        ("seq_mean_k2", 0.8, [False] * 3, False),
        ("seq_mean_k3", (K3[0] + K3[1]) / 3 + 0.01, [True] * 3, False),
        ("seq_max_k2", 1.9, [False] * 3, False),
        ("seq_max_k2", 2.0, [True] * 3, True),
        ("seq_max_k3", K3[1] + 0.01, [True] * 3, False),
        ("seq_max_k3", K3[3] + 0.01, [True] * 3, True),
    ],
)
def test_divergences_by_hand(criterion, threshold, first, second):
    found = divergence_rejection(D, ZERO, MASK, criterion=criterion, threshold=threshold)
    assert found.keep.tolist() == [first, [second, False, False]]
    assert torch.equal(found.weight, MASK.double())
    dropped = (MASK & ~found.keep).float()
    assert torch.equal(found.observed["rollout_dropped"], dropped)
    assert torch.equal(found.observed[f"rollout_dropped_{criterion}"], dropped)


def test_perplexity_by_hand():
    """A row of probabilities ½ and ⅛ has perplexity 4; one of ½ and ½, 2."""
    train, rollout = torch.tensor([[0.5, 0.125], [0.25, 9.0]]).log(), torch.tensor([[0.5, 0.5], [0.25, 9.0]]).log()
    mask = torch.tensor([[True, True], [True, False]])
    found = perplexity(train, rollout, mask)
    expected = {
        "training_ppl": [4.0, 4.0],
        "training_log_ppl": [math.log(4), math.log(4)],
        "rollout_ppl": [2.0, 4.0],
        "rollout_log_ppl": [math.log(2), math.log(4)],
        "log_ppl_diff": [math.log(2), 0.0],
        "log_ppl_abs_diff": [math.log(2), 0.0],
        "ppl_ratio": [2.0, 1.0],
        "rollout_chi2_seq": [0.25**2 - 1, 0.0],
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].tolist() == pytest.approx(values, abs=1e-6), name
    assert perplexity(rollout, train, mask)["log_ppl_abs_diff"][0].item() == pytest.approx(math.log(2))


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.integers(1, 2))


@settings(max_examples=40)
@given(shapes, st.integers(2, 4), st.sampled_from(CRITERIA), st.floats(0.01, 3), st.integers(0, 10_000))
def test_equals_the_reference(shape, axes, criterion, threshold, seed):
    tensors = two_policies(shape[:axes], seed)
    before = [x.clone() for x in tensors]
    lists = [x.tolist() for x in tensors]
    found = divergence_rejection(*tensors, criterion=criterion, threshold=threshold)
    weight, keep = reference.divergence_rejection(*lists, criterion, threshold)
    assert (found.weight.tolist(), found.keep.tolist()) == (weight, keep)
    found = perplexity(*tensors)
    for name, value in reference.perplexity(*lists).items():
        np.testing.assert_allclose(found[name], value, atol=1e-12, rtol=1e-9)
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_divergence_sees_neither_what_is_masked_nor_other_rows_nor_a_sign(criterion):
    def make(*x):
        return divergence_rejection(*x, criterion=criterion, threshold=0.5)

    train, rollout, mask = two_policies((6, 3), 5)
    expected = make(train, rollout, mask)
    garbage = make(torch.where(mask, train, torch.nan), torch.where(mask, rollout, torch.inf), mask)
    assert torch.equal(garbage.keep, expected.keep)
    assert torch.equal(make(train[2:3], rollout[2:3], mask[2:3]).keep, expected.keep[2:3])
    padded = make(*(torch.cat([x, x], 1) for x in (train, rollout)), torch.cat([mask, mask & False], 1))
    assert torch.equal(padded.keep[:, :3], expected.keep)
    assert torch.equal(make(train, train, mask).keep, mask)
    assert mask.any()
    assert not torch.equal(expected.keep, mask)
    if criterion.endswith("k2"):
        assert torch.equal(make(rollout, train, mask).keep, expected.keep)


def test_what_is_impossible_for_one_is_dropped():
    never, other = torch.tensor([[-math.inf, -1.0]]), torch.tensor([[-1.0, -1.0]])
    both = torch.ones(1, 2, dtype=torch.bool)
    for criterion in CRITERIA:
        found = divergence_rejection(never, other, both, criterion=criterion, threshold=5.0).keep.tolist()
        assert found == [[False, criterion.startswith("token")]]
        assert divergence_rejection(never, never, both, criterion=criterion, threshold=0.0).keep.all()
    assert perplexity(never, other, both)["ppl_ratio"].item() == pytest.approx(math.exp(20.0))


def test_perplexity_of_garbage_is_that_of_what_was_decided():
    train, rollout, mask = two_policies((5, 3, 2), 7)
    mask[1] = False
    expected = perplexity(train, rollout, mask)
    found = perplexity(*(torch.where(mask[..., None], x, torch.nan) for x in (train, rollout)), mask)
    for name, value in expected.items():
        assert torch.equal(found[name], value)
        assert value.shape == (5,)
        assert value[1] == 0.0
    torch.testing.assert_close(expected["training_ppl"][mask.any(1)].log(), expected["training_log_ppl"][mask.any(1)])
    assert all(value.isfinite().all() for value in perplexity(1e4 * train, -1e4 * train, mask).values())


def test_the_configuration_says_what_is_dropped():
    x = two_policies((4, 3), 5)
    config = read(CorrectionConfig, {"mode": "none", "reject_above": {"token_k2": 0.5, "seq_max_k3": 3}})
    found = config.of(*x)
    expected = divergence_rejection(*x, criterion="token_k2", threshold=0.5)
    expected &= divergence_rejection(*x, criterion="seq_max_k3", threshold=3.0)
    assert torch.equal(found.keep, expected.keep)
    assert torch.equal(found.weight, x[2].double())
    assert torch.equal(CorrectionConfig(mode="none").of(*x).factor, x[2].double())
    assert found.by_row.keys() == perplexity(*x).keys()
    assert {"rollout_dropped_token_k2", "rollout_dropped_seq_max_k3", *mismatch(*x)} <= found.observed.keys()


def test_what_several_criteria_drop_is_counted_once():
    x = two_policies((6, 3), 5)
    one = divergence_rejection(*x, criterion="token_k2", threshold=0.3)
    two = geometric_rejection(*x, low=0.5, high=2.0)
    assert not torch.equal(one.keep, two.keep)
    assert torch.equal((one & two).observed["rollout_dropped"], (x[2] & ~(one & two).keep).float())


def test_a_loss_logs_perplexities_as_means_over_rows():
    g = torch.Generator().manual_seed(3)
    logprob, before, rollout, advantage = (torch.randn(5, 4, generator=g, dtype=torch.float64) for _ in range(4))
    mask = torch.rand(5, 4, generator=g) < 0.6
    mask[2] = False
    loss = PPOClip(correction=CorrectionConfig(reject_above={"token_k2": 1.0}))

    def of(rows):
        tensors = {"logprob": logprob, "logprob_proximal": before, "logprob_old": rollout, "advantage": advantage, "mask": mask}
        return loss.of(LossInputs(**{name: x[rows] for name, x in tensors.items()})).metrics

    whole = means(of(slice(None)))
    expected = perplexity(before, rollout, mask)
    assert whole["training_ppl"] == pytest.approx(expected["training_ppl"].sum().item() / 4)
    assert whole["log_ppl_diff"] == pytest.approx(expected["log_ppl_diff"].sum().item() / 4)
    assert means(merge([of(slice(0, 2)), of(slice(2, 5))])) == pytest.approx(whole)
    _, named = policy_loss(
        loss_type="ppo_clip",
        logprob=logprob,
        logprob_old=rollout,
        logprob_proximal=before,
        advantage=advantage,
        mask=mask,
        correction={"reject_above": {"token_k2": 1.0}},
    )
    assert named == pytest.approx(whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: divergence_rejection(D, ZERO, MASK, criterion="token_k4", threshold=1.0),
            r"divergence_rejection\(criterion\): expected one of token_k2, .*found 'token_k4'. Did you mean 'token_k",
        ),
        (lambda: CorrectionConfig(reject_above={"token_k1": 1.0}), r"reject_above.token_k1: no divergence .* use mode 'reject'"),
        *(
            (
                lambda bad=bad: divergence_rejection(D, ZERO, MASK, criterion="token_k2", threshold=bad),
                r"divergence_rejection\(threshold\): expected at least 0",
            )
            for bad in (-0.1, math.nan)
        ),
        (
            lambda: CorrectionConfig(reject_above={"seq_max_k2": math.nan}),
            r"reject_above.seq_max_k2: expected at least 0",
        ),
    ],
)
def test_parameters_are_checked(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"divergence_rejection\(logprob_rollout\)"):
        divergence_rejection(D, ZERO[:1], MASK, criterion="token_k2", threshold=1.0)
    with pytest.raises(ShapeError, match=r"perplexity\(mask\)"):
        perplexity(D, ZERO, MASK[:1])

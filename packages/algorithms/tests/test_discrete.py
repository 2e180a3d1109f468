import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.objectives import discrete, distributional
from rlinf.algorithms.objectives.sac import temperature_loss
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

seeds = st.integers(0, 10_000)
REWARD, ENDED = torch.tensor([1.0, 2.0]), torch.tensor([False, True])
Q = torch.tensor([[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]])
OTHER = torch.tensor([[9.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
HALF = math.log(0.5)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_targets_of_q_learning_by_hand():
    """1 + 0.5 · 4; the other network prefers action 0, worth 1: 1 + 0.5 · 1."""
    assert discrete.double_q_target(REWARD, ENDED, Q, Q, gamma=0.5).tolist() == [3.0, 2.0]
    assert discrete.double_q_target(REWARD, ENDED, Q, OTHER, gamma=0.5).tolist() == [1.5, 2.0]
    always = discrete.double_q_target(REWARD, ENDED, Q, Q, gamma=torch.tensor([1.0, 0.5]), bootstrap="always")
    assert always.tolist() == [5.0, 4.5]
    assert discrete.double_q_target(REWARD, ENDED, Q, OTHER, gamma=0.5, bootstrap="always").tolist() == [1.5, 2.0]


@settings(max_examples=25)
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.floats(0, 1))
def test_targets_of_q_learning_equal_the_reference(seed, rows, actions, gamma):
    reward, ended = normal(seed, rows), normal(seed + 1, rows) > 0
    q, other = normal(seed + 2, rows, actions), normal(seed + 3, rows, actions)
    lists = [x.tolist() for x in (reward, ended, q, other)]
    found = discrete.double_q_target(reward, ended, q, other, gamma=gamma)
    assert found.tolist() == pytest.approx(reference.double_q_target(*lists, gamma=gamma))


def test_q_learning_loss_by_hand():
    """Q of the actions taken is 2 and 3, the targets are 0 and 4; only those actions get a gradient."""
    q = Q.clone().requires_grad_()
    output = discrete.q_learning_loss(q, torch.tensor([2, 0]), torch.tensor([0.0, 4.0]))
    output.total.backward()
    assert output.total.item() == 2.5
    assert q.grad.tolist() == [[0.0, 0.0, 2.0], [-1.0, 0.0, 0.0]]
    assert means(output.metrics) == {"critic_loss": 1.25, "q": 2.5, "target": 2.0, "td_error": 1.5}
    clipped = discrete.q_learning_loss(q, torch.tensor([2, 0]), torch.tensor([0.0, 4.0]), huber_delta=1.0)
    assert clipped.total.item() == 2.0
    expected = reference.q_learning_loss(Q.tolist(), [2, 0], [0.0, 4.0], weight=[2.0, 0.0])
    garbage = Q.clone()
    garbage[1] = math.nan
    weight = torch.tensor([2.0, 0.0])
    masked = discrete.q_learning_loss(garbage, torch.tensor([2, 99]), torch.tensor([0.0, math.nan]), weight=weight)
    assert (masked.total.item(), masked.weight.item()) == expected[:2] == (4.0, 1.0)


def test_an_action_that_is_not_allowed_has_no_part():
    logprob = torch.tensor([[HALF, HALF, -math.inf]], requires_grad=True)
    q = torch.tensor([[[2.0], [4.0], [99.0]]])
    assert discrete.expected_logprob(logprob).item() == pytest.approx(HALF)
    output = discrete.discrete_sac_actor_loss(logprob, q, alpha=2.0)
    output.total.backward()
    assert output.total.item() == pytest.approx(2 * HALF - 3.0)
    assert means(output.metrics) == pytest.approx({"actor_loss": 2 * HALF - 3.0, "entropy": -HALF, "actor_q": 3.0})
    assert logprob.grad.isfinite().all()
    assert logprob.grad[0, 2] == 0
    found = discrete.discrete_sac_target(torch.ones(1), ENDED[:1], q, logprob, gamma=0.5, alpha=2.0)
    assert found.item() == pytest.approx(1 + 0.5 * (3.0 - 2 * HALF))
    assert not found.requires_grad


def test_the_temperature_hears_of_the_entropy():
    alpha = torch.tensor(1.0, requires_grad=True)
    logprob = torch.tensor([[HALF, HALF]])
    temperature_loss(alpha, discrete.expected_logprob(logprob), target_entropy=0.5).total.backward()
    assert alpha.grad.item() == pytest.approx(-HALF - 0.5)


@settings(max_examples=25)
@given(seeds, st.integers(1, 4), st.sampled_from(["min", "mean"]), st.booleans(), st.sampled_from(["standard", "always"]))
def test_the_target_of_discrete_sac_equals_the_reference(seed, rows, aggregate, backup_entropy, bootstrap):
    reward, ended, q = normal(seed, rows), normal(seed + 1, rows) > 0, normal(seed + 2, rows, 3, 2)
    logprob = normal(seed + 3, rows, 3).log_softmax(1)
    words = {"gamma": 0.9, "alpha": 0.4, "aggregate": aggregate, "backup_entropy": backup_entropy, "bootstrap": bootstrap}
    found = discrete.discrete_sac_target(reward, ended, q, logprob, **words)
    lists = [x.tolist() for x in (reward, ended, q, logprob)]
    assert found.tolist() == pytest.approx(reference.discrete_sac_target(*lists, **words))
    assert discrete.expected_logprob(logprob).tolist() == pytest.approx(reference.expected_logprob(lists[3]))


def test_a_projection_by_hand():
    """Masses at −5, 0.25, 1.5, 9 on atoms 0, 1, 3: all of the first on 0, ¾ and ¼, ¾ and ¼, all of the last on 3."""
    position, prob = torch.tensor([[-5.0, 0.25, 1.5, 9.0]]), torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    found = distributional.categorical_projection(position, prob, torch.tensor([0.0, 1.0, 3.0]))
    assert found[0].tolist() == pytest.approx([0.4, 0.25, 0.35])


@settings(max_examples=40)
@given(seeds, st.integers(1, 3), st.integers(1, 5), st.integers(2, 5))
def test_a_projection_equals_the_reference_and_keeps_mass_and_mean(seed, rows, masses, size):
    atoms = normal(seed, size).exp().cumsum(0)
    position, prob = 3 * normal(seed + 1, rows, masses), normal(seed + 2, rows, masses).softmax(1)
    found = distributional.categorical_projection(position, prob, atoms)
    lists = position.tolist(), prob.tolist(), atoms.tolist()
    torch.testing.assert_close(found, torch.tensor(reference.categorical_projection(*lists), dtype=found.dtype))
    torch.testing.assert_close(found.sum(1), torch.ones(rows, dtype=found.dtype))
    inside = position.clamp(atoms[0], atoms[-1])
    torch.testing.assert_close(found @ atoms, (inside * prob).sum(1))


@settings(max_examples=20)
@given(seeds, st.integers(1, 4), st.booleans())
def test_the_target_histogram_equals_the_reference(seed, rows, per_row):
    atoms = torch.linspace(-2, 2, 5, dtype=torch.float64)
    reward, ended, prob = normal(seed, rows), normal(seed + 1, rows) > 0, normal(seed + 2, rows, 5).softmax(1)
    gamma = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) if per_row else 0.9
    found = distributional.categorical_target(reward, ended, prob, atoms, gamma=gamma)
    lists = [x.tolist() for x in (reward, ended, prob, atoms)]
    expected = reference.categorical_target(*lists, gamma=gamma.tolist() if per_row else gamma)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))


def test_half_precision_becomes_float32():
    atoms = torch.tensor([0.0, 1.0]).bfloat16()
    prob = torch.tensor([[0.5, 0.5]]).bfloat16()
    found = distributional.categorical_target(REWARD[:1].bfloat16(), ENDED[:1], prob, atoms, gamma=0.9)
    assert (found.dtype, found.tolist()) == (torch.float32, [[0.0, 1.0]])


def test_histograms_and_quantiles_by_hand():
    """−log ½; and quantiles 0, 4 at ¼, ¾ against 2: ¼ · 2 + ¼ · 2 without Huber, ¼ · 1.5 + ¼ · 1.5 with κ = 1."""
    logit = torch.zeros(1, 2)
    assert distributional.categorical_loss(logit, torch.tensor([[0.25, 0.75]])).total.item() == pytest.approx(-HALF)
    quantile, target = torch.tensor([[0.0, 4.0]]), torch.tensor([[2.0]])
    assert distributional.quantile_huber_loss(quantile, target, kappa=0.0).total.item() == 1.0
    output = distributional.quantile_huber_loss(quantile, target)
    assert output.total.item() == 0.75
    assert means(output.metrics) == {"critic_loss": 0.75, "q": 2.0, "target": 2.0}
    assert distributional.quantile_huber_loss(quantile, target, kappa=4.0).total.item() == 1.0
    drawn = distributional.quantile_huber_loss(quantile, target, kappa=0.0, tau=torch.tensor([[0.9, 0.2]]))
    assert drawn.total.item() == pytest.approx(1.8 + 1.6)


def test_the_minimum_is_a_quantile():
    """Of 0, 1, 2, 3 any value between 1 and 2 is the median: the slope is 0 there."""
    quantile = torch.tensor([[1.5]], requires_grad=True)
    distributional.quantile_huber_loss(quantile, torch.arange(4.0)[None], kappa=0.0).total.backward()
    assert quantile.grad.item() == 0.0


ATOMS = torch.tensor([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: discrete.double_q_target(REWARD, ENDED, Q, Q[:, :2], gamma=0.9), ShapeError, r"\(q_next_selector\)"),
        (lambda: discrete.double_q_target(REWARD, ENDED, REWARD, REWARD, gamma=0.9), ShapeError, r"\(q_next\)"),
        (lambda: discrete.q_learning_loss(Q, torch.zeros(3), REWARD), ShapeError, r"q_learning_loss\(action\)"),
        (lambda: discrete.expected_logprob(REWARD), ShapeError, r"expected_logprob\(logprob\)"),
        (lambda: discrete.discrete_sac_target(REWARD, ENDED, Q, Q, gamma=0.9, alpha=0.1), ShapeError, r"_target\(q_next\)"),
        (
            lambda: discrete.discrete_sac_target(REWARD, ENDED, Q[..., None], Q[:, :2], gamma=0.9, alpha=0.1),
            ShapeError,
            r"_target\(logprob_next\)",
        ),
        (
            lambda: discrete.discrete_sac_target(REWARD, ENDED, Q[..., None], Q, gamma=0.9, alpha=-0.1),
            ConfigError,
            r"_target\(alpha\)",
        ),
        (lambda: discrete.discrete_sac_actor_loss(Q, Q[..., None], alpha=-0.1), ConfigError, r"_actor_loss\(alpha\)"),
        (lambda: distributional.categorical_projection(Q, Q[:1], ATOMS), ShapeError, r"_projection\(prob\)"),
        (lambda: distributional.categorical_projection(REWARD, REWARD, ATOMS), ShapeError, r"_projection\(position\)"),
        (lambda: distributional.categorical_projection(Q, Q, ATOMS[:1]), ShapeError, r"_projection\(atoms\): .* Z of 2"),
        (lambda: distributional.categorical_projection(Q, Q, Q), ShapeError, r"_projection\(atoms\)"),
        (lambda: distributional.categorical_target(REWARD, ENDED, Q[:, :2], ATOMS, gamma=0.9), ShapeError, r"\(prob_next\)"),
        (lambda: distributional.categorical_target(REWARD, ENDED[:1], Q, ATOMS, gamma=0.9), ShapeError, r"\(terminated\)"),
        (lambda: distributional.categorical_target(REWARD, ENDED, Q, ATOMS, gamma=1.1), ConfigError, r"\(gamma\)"),
        (lambda: distributional.categorical_target(REWARD, ENDED, Q, ATOMS, gamma=-0.1), ConfigError, r"\(gamma\)"),
        (lambda: distributional.categorical_target(REWARD, ENDED, Q, ATOMS, gamma=torch.ones(3)), ShapeError, r"\(gamma\)"),
        (lambda: distributional.quantile_huber_loss(Q, Q, kappa=-0.1), ConfigError, r"quantile_huber_loss\(kappa\)"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

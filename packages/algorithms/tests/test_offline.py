import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages import n_step_returns
from rlinf.algorithms.objectives import awr, cql, iql
from rlinf.algorithms.objectives.critic import critic_loss, td_target
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

seeds = st.integers(0, 10_000)
Q = torch.tensor([[3.0, 4.0], [1.0, 2.0]])


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_expectile_by_hand():
    """0.9 · 2² above, 0.1 · 2² below; one half gives half the square."""
    error = torch.tensor([2.0, -2.0, 0.0])
    assert iql.expectile_loss(error, expectile=0.9).tolist() == pytest.approx([3.6, 0.4, 0.0])
    assert iql.expectile_loss(error, expectile=0.5).tolist() == [2.0, 2.0, 0.0]
    assert iql.expectile_loss(error, expectile=1.0).tolist() == [4.0, 0.0, 0.0]


def test_the_minimum_is_an_expectile():
    """Of 0 and 1, the 0.8-expectile v solves 0.8 (1 − v) = 0.2 v: v = 0.8."""
    value = torch.tensor(0.8, requires_grad=True)
    iql.expectile_loss(torch.tensor([0.0, 1.0]) - value, expectile=0.8).sum().backward()
    assert value.grad.abs() < 1e-6


def test_iql_value_loss_by_hand():
    """u = min(3, 4) − 2 = 1 and 1 − 4 = −3: 0.7 · 1 + 0.3 · 9."""
    output = iql.iql_value_loss(torch.tensor([2.0, 4.0]), Q)
    assert output.total.item() == pytest.approx(3.4)
    assert means(output.metrics) == pytest.approx({"value_loss": 1.7, "value": 3.0, "advantage": -1.0})
    # 1.5 and −2.5
    mean = iql.iql_value_loss(torch.tensor([2.0, 4.0]), Q, aggregate="mean")
    assert mean.total.item() == pytest.approx(0.7 * 2.25 + 0.3 * 6.25)


def test_iql_targets_and_critics_by_hand():
    target = td_target(torch.tensor([1.0, 1.0]), torch.tensor([False, True]), torch.tensor([2.0, 9.0]), gamma=0.5)
    assert target.tolist() == [2.0, 1.0] == reference.td_target([1.0, 1.0], [False, True], [2.0, 9.0], gamma=0.5)
    always = td_target(torch.ones(1), torch.tensor([True]), torch.tensor([9.0]), gamma=0.5, bootstrap="always")
    assert always.item() == 5.5
    # ½ (1 + 4) + ½ (0 + 1)
    assert critic_loss(Q, target).total.item() == 3.0


def test_iql_actor_loss_by_hand():
    """exp(3 · 1) on log π = −2; exp(3 · 5) is clipped to 100."""
    output = iql.iql_actor_loss(torch.tensor([-2.0, -1.0]), torch.tensor([2.0, -4.0]), Q)
    assert output.total.item() == pytest.approx(2 * math.exp(3) + 100, rel=1e-5)
    assert output.metrics["advantage_clip_fraction"].mean == 0.5
    assert output.metrics["advantage_weight"].mean == pytest.approx((math.exp(3) + 100) / 2, rel=1e-5)
    cloned = iql.iql_actor_loss(torch.tensor([-2.0, -1.0]), torch.tensor([2.0, -4.0]), Q, beta=0.0)
    assert cloned.total.item() == 3.0


def test_awr_weights_by_hand():
    advantage = torch.tensor([0.0, 2.0, 10.0, -2.0], requires_grad=True)
    found = awr.awr_weights(advantage, beta=0.5)
    assert found.tolist() == pytest.approx([1.0, math.e, 20.0, 1 / math.e])
    assert not found.requires_grad
    assert awr.awr_weights(advantage, beta=0.5, max_weight=math.inf)[2].item() == pytest.approx(math.exp(5))
    assert awr.awr_weights(torch.tensor([1e6]), beta=1.0).item() == 20.0
    assert awr.awr_weights(advantage, beta=0.0, max_weight=0.5).tolist() == [0.5] * 4
    assert reference.awr_weights(advantage.tolist(), beta=0.5) == pytest.approx(found.tolist())


@settings(max_examples=25)
@given(seeds, st.integers(1, 6), st.floats(0, 3), st.booleans())
def test_awac_weights_equal_the_reference_and_have_mean_one(seed, rows, beta, masked):
    advantage = normal(seed, rows)
    mask = normal(seed + 1, rows) > -0.5 if masked else None
    found = awr.awac_weights(advantage, beta=beta, mask=mask)
    assert found.tolist() == pytest.approx(
        reference.awac_weights(advantage.tolist(), beta=beta, mask=mask if mask is None else mask.tolist())
    )
    if mask is None or mask.any():
        assert found.sum().item() == pytest.approx(rows if mask is None else mask.sum().item())


def test_awac_weights_by_hand():
    """Odds of 1 to 3 over two rows that count; garbage elsewhere does no harm."""
    advantage, mask = torch.tensor([0.0, math.log(3.0), math.nan]), torch.tensor([True, True, False])
    assert awr.awac_weights(advantage, beta=1.0, mask=mask).tolist() == pytest.approx([0.5, 1.5, 0.0])
    assert awr.awac_weights(advantage, beta=2.0, mask=mask).tolist() == pytest.approx([0.2, 1.8, 0.0])
    assert awr.awac_weights(torch.tensor([1e5, 0.0]), beta=1.0).tolist() == [2.0, 0.0]
    assert awr.awac_weights(advantage, beta=1.0, mask=~mask & False).tolist() == [0.0, 0.0, 0.0]


def test_weighted_cloning_by_hand():
    output = awr.weighted_bc_loss(torch.tensor([-1.0, -2.0]), torch.tensor([3.0, 0.5]))
    assert (output.total.item(), output.weight.item()) == (4.0, 2.0)
    assert means(output.metrics) == {"actor_loss": 2.0, "advantage_weight": 1.75}


@pytest.mark.parametrize(
    ("fraction", "expected"),
    # of 0 … 10 the 0.7-quantile is 7, reached by 7, 8, 9, 10; of 11 values that is 4
    [(0.3, 7.0), (0.0, 10.0), (1.0, 0.0), (0.25, 7.5), (0.1, 9.0), (0.55, 4.5)],
)
def test_threshold_by_hand(fraction, expected):
    advantage = torch.tensor([5.0, 1.0, 9.0, 3.0, 7.0, 0.0, 10.0, 2.0, 4.0, 8.0, 6.0])
    assert awr.advantage_threshold(advantage, positive_fraction=fraction) == expected
    assert reference.advantage_threshold(advantage.tolist(), positive_fraction=fraction) == pytest.approx(expected)


@settings(max_examples=40)
@given(seeds, st.integers(1, 12), st.floats(0, 1))
def test_threshold_equals_numpy_and_the_reference_and_keeps_its_promise(seed, count, fraction):
    advantage = normal(seed, count)
    found = awr.advantage_threshold(advantage, positive_fraction=fraction)
    assert found == pytest.approx(torch.quantile(advantage, 1.0 - fraction).item(), abs=1e-8)
    assert found == pytest.approx(reference.advantage_threshold(advantage.tolist(), positive_fraction=fraction), abs=1e-8)
    share = awr.advantage_labels(advantage, threshold=found).double().mean().item()
    assert abs(share - fraction) <= 1 / count + 1e-6


def test_a_threshold_counts_only_what_the_mask_says():
    advantage = torch.tensor([[1.0, math.nan], [3.0, 2.0]])
    mask = torch.tensor([[True, False], [True, True]])
    assert awr.advantage_threshold(advantage, positive_fraction=0.5, mask=mask) == 2.0
    assert awr.advantage_threshold(torch.full((3,), -math.inf)) == -math.inf


def test_labels_by_hand():
    advantage, mask = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, True, True, False])
    forced = torch.tensor([True, False, False, True])
    for strict, expected in ((False, [True, True, True, False]), (True, [True, False, True, False])):
        words = {"threshold": 2.0, "strict": strict}
        assert awr.advantage_labels(advantage, forced=forced, mask=mask, **words).tolist() == expected
        lists = {"forced": forced.tolist(), "mask": mask.tolist()}
        assert reference.advantage_labels(advantage.tolist(), **lists, **words) == expected
    assert awr.advantage_labels(advantage, threshold=2.0).tolist() == [False, True, True, True]


def test_the_worst_of_three_critics_by_hand():
    """The one that is thrilled by the last decision is alone with that; and what equals the quantile is not above it."""
    critics = torch.tensor([[0.1, 0.5, 0.3, 0.9], [0.4, 0.2, 0.3, -0.7], [0.2, 0.6, 0.8, 0.9]])
    worst = awr.worst_of_ensemble(critics)
    assert worst.tolist() == pytest.approx([0.1, 0.2, 0.3, -0.7])
    assert worst.tolist() == reference.worst_of_ensemble(critics.tolist())
    threshold = awr.advantage_threshold(worst, positive_fraction=1 / 3)
    assert threshold == worst[1].item()
    assert awr.advantage_labels(worst, threshold=threshold, strict=True).tolist() == [False, False, True, False]
    assert awr.advantage_labels(worst, threshold=threshold).tolist() == [False, True, True, False]


@given(seeds, st.integers(1, 4))
def test_a_critic_more_never_makes_the_worst_better(seed, count):
    critics = normal(seed, count + 1, 6)
    worst = awr.worst_of_ensemble(critics)
    assert (worst <= awr.worst_of_ensemble(critics[:count])).all()
    assert torch.equal(worst, awr.worst_of_ensemble(critics.flip(0)))
    assert not awr.worst_of_ensemble(critics.requires_grad_()).requires_grad
    assert torch.equal(awr.worst_of_ensemble(critics[:1]), critics[0])


def test_lookahead_by_hand():
    """One step costs 0.1, failing 0.5; two steps ahead, and nothing behind the end."""
    reward, value = torch.tensor([-0.1, -0.1, -0.5]), torch.tensor([-0.4, -0.3, -0.2])
    found = awr.lookahead_advantages(reward, value, steps=2)
    assert found.tolist() == pytest.approx([-0.2 - 0.2 + 0.4, -0.6 + 0.3, -0.5 + 0.2])


@pytest.mark.parametrize("steps", [1, 3, 7, 50])
def test_a_lookahead_is_an_n_step_return_minus_what_was_expected(steps):
    reward, value = normal(1, 7), normal(2, 7)
    end = torch.arange(7) == 6
    following = torch.cat([value, torch.full((1,), 9.0)])
    returns = n_step_returns(reward[None], following[None], end[None], (end & ~end)[None], gamma=1.0, n=steps)[0]
    found = awr.lookahead_advantages(reward, value, steps=steps)
    torch.testing.assert_close(found, (returns - value).double(), atol=1e-5, rtol=0)
    assert found.tolist() == pytest.approx(reference.lookahead_advantages(reward.tolist(), value.tolist(), steps=steps))
    # What is expected of all states alike cancels, but at the end.
    if steps < 7:
        lifted = awr.lookahead_advantages(reward, value + 3.0, steps=steps)
        torch.testing.assert_close(lifted[:-steps], found[:-steps], atol=1e-5, rtol=0)


def test_penalty_by_hand():
    """Two samples whose corrected values are 0 and log 3: their mean exponential is 2; minus Q of the data."""
    q, samples = torch.tensor([[0.5]]), torch.tensor([[[-1.0], [math.log(3.0) + 2.0]]])
    density = torch.tensor([[-1.0, 2.0]])
    assert cql.cql_penalty(q, samples, density).item() == pytest.approx(math.log(2.0) - 0.5)
    # halved: exponentials 1 and √3
    cool = cql.cql_penalty(q, samples, density, temperature=2.0).item()
    assert cool == pytest.approx(2 * math.log((1 + math.sqrt(3)) / 2) - 0.5, rel=1e-6)
    # a floor of log 5 − 1 lifts the first sample to 5
    floor = torch.tensor([[math.log(5.0) - 1.0, -math.inf]])
    assert cql.cql_penalty(q, samples, density, floor=floor).item() == pytest.approx(math.log(4.0) - 0.5)


def test_the_samples_of_a_constant_critic_integrate_to_its_volume():
    """Q = 2 on [−1, 3] × [0, 0.5]: log ∫ exp Q = 2 + log 2."""
    density = cql.uniform_log_density(torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 0.5]))
    assert density.item() == pytest.approx(-math.log(2.0)) == reference.uniform_log_density([-1.0, 0.0], [3.0, 0.5])
    penalty = cql.cql_penalty(torch.zeros(1, 1), torch.full((1, 7, 1), 2.0), density.expand(1, 7))
    assert penalty.item() == pytest.approx(2.0 + math.log(2.0))


def test_density_and_floor_have_no_gradient():
    leaves = [normal(i, *shape).requires_grad_() for i, shape in enumerate([(2, 3), (2, 4, 3), (2, 4), (2, 4)])]
    q, samples, density, floor = leaves
    cql.cql_penalty(q, samples, density, floor=floor).sum().backward()
    assert [x.grad is not None for x in leaves] == [True, True, False, False]


def test_cql_critic_loss_by_hand():
    """½ (1 + 4) + 0.5 (2 + 4 − 2 · 0.5) and ½ (9 + 4) + 0.5 (0 − 1 − 2 · 0.5)."""
    penalty = torch.tensor([[2.0, 4.0], [0.0, -1.0]])
    output = cql.cql_critic_loss(Q, torch.tensor([2.0, 4.0]), penalty, alpha=0.5, gap=0.5)
    assert output.total.item() == 5.0 + 5.5
    assert means(output.metrics) == {"critic_loss": 4.5, "cql_penalty": 1.25, "q": 2.5, "target": 3.0, "td_error": 2.0}
    assert output.td_error is not None
    assert output.td_error.tolist() == [1.5, 2.5]
    trained = cql.cql_critic_loss(Q, torch.tensor([2.0, 4.0]), penalty, alpha=torch.tensor(0.5, requires_grad=True), gap=0.5)
    assert not trained.total.requires_grad


def test_alpha_rises_while_the_penalty_is_above_the_gap():
    alpha = torch.tensor(2.0, requires_grad=True)
    output = cql.cql_alpha_loss(alpha, torch.tensor([[2.0, 4.0]]), gap=1.0)
    output.total.backward()
    assert (output.total.item(), alpha.grad.item()) == (-4.0, -2.0)
    assert means(output.metrics) == {"cql_alpha_loss": -4.0, "cql_alpha": 2.0}


@settings(max_examples=20)
@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_discrete_penalty_equals_the_reference_and_is_not_negative(seed, rows, actions, critics):
    q = normal(seed, rows, actions, critics)
    action = torch.randint(actions, (rows,), generator=torch.Generator().manual_seed(seed))
    found = cql.cql_discrete_penalty(q, action)
    torch.testing.assert_close(found, torch.tensor(reference.cql_discrete_penalty(q.tolist(), action.tolist()), dtype=q.dtype))
    assert (found >= -1e-12).all()


def test_discrete_penalty_of_a_masked_row_has_no_gradient():
    q = torch.tensor([[[0.0], [0.0]], [[math.nan], [math.nan]]], requires_grad=True)
    weight = torch.tensor([1.0, 0.0])
    penalty = cql.cql_discrete_penalty(q, torch.tensor([1, 99]), weight=weight)
    output = cql.cql_critic_loss(torch.zeros(2, 1), torch.zeros(2), penalty, alpha=1.0, weight=weight)
    output.total.backward()
    assert output.total.item() == pytest.approx(math.log(2.0))
    assert q.grad.flatten().tolist() == [0.5, -0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: iql.expectile_loss(Q, expectile=0.0), ConfigError, r"expectile_loss\(expectile\): .* \(0, 1\]"),
        (lambda: iql.expectile_loss(Q, expectile=1.1), ConfigError, r"expectile_loss\(expectile\)"),
        (lambda: awr.awr_weights(Q, beta=-1.0), ConfigError, r"awr_weights\(beta\)"),
        (lambda: awr.awr_weights(Q, beta=1.0, max_weight=0.0), ConfigError, r"awr_weights\(max_weight\)"),
        (lambda: awr.awac_weights(Q[0], beta=-1.0), ConfigError, r"awac_weights\(beta\)"),
        (lambda: awr.awac_weights(Q, beta=1.0), ShapeError, r"awac_weights\(advantage\)"),
        (lambda: awr.awac_weights(Q[0], beta=1.0, mask=Q > 0), ShapeError, r"awac_weights\(mask\)"),
        (lambda: awr.advantage_threshold(Q, positive_fraction=1.1), ConfigError, r"\(positive_fraction\)"),
        (lambda: awr.advantage_threshold(Q, positive_fraction=-0.1), ConfigError, r"\(positive_fraction\)"),
        (lambda: awr.advantage_threshold(Q, mask=Q > 9), ShapeError, "at least one advantage"),
        (lambda: awr.advantage_labels(Q, threshold=0.0, forced=Q[0] > 0), ShapeError, r"advantage_labels\(forced\)"),
        (lambda: awr.advantage_labels(Q, threshold=0.0, mask=Q[0] > 0), ShapeError, r"advantage_labels\(mask\)"),
        (lambda: awr.lookahead_advantages(Q[0], Q[0], steps=0), ConfigError, r"\(steps\)"),
        (lambda: awr.lookahead_advantages(Q, Q, steps=1), ShapeError, r"lookahead_advantages\(reward\)"),
        (lambda: awr.lookahead_advantages(Q[0], Q[0, :1], steps=1), ShapeError, r"lookahead_advantages\(value\)"),
        (lambda: awr.worst_of_ensemble(Q[0]), ShapeError, r"worst_of_ensemble\(advantage\): expected \[N, T\]"),
        (lambda: awr.worst_of_ensemble(Q[:0]), ShapeError, r"worst_of_ensemble\(advantage\): .* at least one critic"),
        (lambda: cql.uniform_log_density(Q[0], Q), ShapeError, r"uniform_log_density\(high\)"),
        (lambda: cql.cql_penalty(Q, Q[..., None], Q), ShapeError, r"cql_penalty\(q_samples\)"),
        (lambda: cql.cql_penalty(Q, Q[:, None], Q), ShapeError, r"cql_penalty\(log_density\)"),
        (lambda: cql.cql_penalty(Q, Q[:, None], Q[:, :1], floor=Q), ShapeError, r"cql_penalty\(floor\)"),
        (lambda: cql.cql_penalty(Q, Q[:, None], Q[:, :1], temperature=0.0), ConfigError, r"cql_penalty\(temperature\)"),
        (lambda: cql.cql_critic_loss(Q, Q[0], Q, alpha=-1.0), ConfigError, r"cql_critic_loss\(alpha\)"),
        (lambda: cql.cql_critic_loss(Q, Q[0], Q, alpha=1.0, huber_delta=0.0), ConfigError, r"cql_critic_loss\(huber_delta\)"),
        (lambda: cql.cql_discrete_penalty(Q, torch.zeros(2)), ShapeError, r"cql_discrete_penalty\(q_all\)"),
        (lambda: cql.cql_discrete_penalty(Q[..., None], torch.zeros(3)), ShapeError, r"cql_discrete_penalty\(action\)"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

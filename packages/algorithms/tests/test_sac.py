import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.objectives.critic import aggregate_q, critic_loss, td_error, td_target
from rlinf.algorithms.objectives.crossq import crossq_critic_loss, joint_batch, joint_parts
from rlinf.algorithms.objectives.sac import (
    initial_temperature,
    redq_subset,
    sac_actor_loss,
    sac_target,
    temperature,
    temperature_loss,
)
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

REWARD, TERMINATED = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False])
Q_NEXT = torch.tensor([[10.0, 20.0], [30.0, 40.0], [60.0, 50.0]])
LOGPROB_NEXT = torch.tensor([-1.0, -2.0, 4.0])
GAMMA = {"gamma": 0.5, "alpha": 0.1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 1 + 0.5 (10 + 0.1), 2, 3 + 0.5 (50 - 0.4)
        ({}, [6.05, 2.0, 27.8]),
        ({"backup_entropy": False}, [6.0, 2.0, 28.0]),
        ({"aggregate": "mean"}, [8.55, 2.0, 30.3]),
        ({"subset": [1]}, [11.05, 2.0, 27.8]),
        ({"subset": torch.tensor([0])}, [6.05, 2.0, 32.8]),
        # 2 + 0.5 (30 + 0.2)
        ({"bootstrap": "always"}, [6.05, 17.1, 27.8]),
        ({"gamma": torch.tensor([0.5, 1.0, 0.1])}, [6.05, 2.0, 7.96]),
        ({"gamma": 0.0}, [1.0, 2.0, 3.0]),
        ({"gamma": 1.0}, [11.1, 2.0, 52.6]),
        ({"alpha": torch.tensor(0.0)}, [6.0, 2.0, 28.0]),
        ({"alpha": 1.0}, [6.5, 2.0, 26.0]),
    ],
)
def test_target_by_hand(options, expected):
    target = sac_target(REWARD, TERMINATED, Q_NEXT, LOGPROB_NEXT, **GAMMA | options)
    torch.testing.assert_close(target, torch.tensor(expected))


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(1, 4),
    st.floats(0, 1),
    st.floats(0, 3),
    st.sampled_from(["min", "mean"]),
    st.booleans(),
    st.sampled_from(["standard", "always"]),
    st.booleans(),
)
def test_target_equals_the_reference(seed, rows, critics, gamma, alpha, aggregate, backup_entropy, bootstrap, per_row):
    g = torch.Generator().manual_seed(seed)
    reward, logprob = torch.randn(2, rows, generator=g, dtype=torch.float64)
    q = torch.randn(rows, critics, generator=g, dtype=torch.float64)
    terminated = torch.rand(rows, generator=g) < 0.4
    discount = gamma * torch.rand(rows, generator=g, dtype=torch.float64) if per_row else gamma
    subset = torch.randperm(critics, generator=g)[: 1 + seed % critics]
    words = {"alpha": alpha, "aggregate": aggregate, "backup_entropy": backup_entropy, "bootstrap": bootstrap}
    found = sac_target(reward, terminated, q, logprob, gamma=discount, subset=subset, **words)
    discount = discount.tolist() if per_row else discount
    lists = [x.tolist() for x in (reward, terminated, q, logprob)]
    assert found.tolist() == pytest.approx(reference.sac_target(*lists, gamma=discount, subset=subset.tolist(), **words))


def test_the_end_forgets_even_garbage_and_targets_have_no_gradient():
    q = Q_NEXT.clone()
    q[1] = float("nan")
    leaves = [x.clone().requires_grad_() for x in (REWARD, q, LOGPROB_NEXT, torch.tensor(0.1))]
    target = sac_target(leaves[0], TERMINATED, leaves[1], leaves[2], gamma=0.5, alpha=leaves[3])
    assert not target.requires_grad
    torch.testing.assert_close(target, torch.tensor([6.05, 2.0, 27.8]))


def test_targets_are_in_float32_at_least():
    half = [x.bfloat16() for x in (REWARD, Q_NEXT, LOGPROB_NEXT)]
    assert sac_target(half[0], TERMINATED, half[1], half[2], **GAMMA).dtype == torch.float32
    double = [x.double() for x in (REWARD, Q_NEXT, LOGPROB_NEXT)]
    assert sac_target(double[0], TERMINATED, double[1], double[2], **GAMMA).dtype == torch.float64
    assert td_target(half[0], TERMINATED, half[2], gamma=0.9).dtype == torch.float32


def test_ties_share_the_gradient_of_the_minimum():
    q = torch.tensor([[1.0, 1.0, 2.0]], requires_grad=True)
    aggregate_q(q).sum().backward()
    assert q.grad.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_subset_has_different_critics_and_is_fair(size):
    g = torch.Generator().manual_seed(0)
    counts = torch.zeros(5)
    for _ in range(500):
        subset = redq_subset(5, size, g)
        assert subset.tolist() == sorted(set(subset.tolist()))
        assert len(subset) == size
        counts[subset] += 1
    assert (counts / 500 - size / 5).abs().max() < 0.09


def test_a_subset_follows_its_generator():
    draw = torch.rand(6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = redq_subset(6, 2, torch.Generator().manual_seed(4))
    assert found.tolist() == reference.redq_subset(6, 2, draw.tolist())
    assert found.dtype == torch.int64


def test_critic_loss_by_hand():
    """Errors 1, -3 and 0, 2 against targets 1 and 5: ½ (1 + 9) + ½ (0 + 4)."""
    q, target = torch.tensor([[2.0, -2.0], [5.0, 7.0]], requires_grad=True), torch.tensor([1.0, 5.0])
    output = critic_loss(q, target)
    output.total.backward()
    assert (output.total.item(), output.weight.item()) == (7.0, 2.0)
    assert q.grad.tolist() == [[1.0, -3.0], [0.0, 2.0]]
    assert means(output.metrics) == {"critic_loss": 3.5, "q": 3.0, "target": 3.0, "td_error": 1.5}
    assert output.td_error is not None
    assert output.td_error.tolist() == [2.0, 1.0]
    assert not output.td_error.requires_grad
    assert td_error(q, target).tolist() == [2.0, 1.0] == reference.td_error(q.tolist(), target.tolist())
    assert not td_error(q, target).requires_grad
    # 0.5 + 2 (3 - 1) and 0 + ½ 4
    assert critic_loss(q, target, huber_delta=2.0).total.item() == pytest.approx(6.5)


def test_importance_weights_scale_the_loss_and_a_mask_counts_rows():
    """Half of ½ (1 + 9), twice ½ 4; a row of weight 0 is not there."""
    q, target = torch.tensor([[2.0, -2.0], [5.0, 7.0], [9.0, 9.0]]), torch.tensor([1.0, 5.0, 0.0])
    output = critic_loss(q, target, weight=torch.tensor([0.5, 2.0, 0.0]))
    assert (output.total.item(), output.weight.item()) == (6.5, 2.0)
    assert output.metrics["critic_loss"].mean == 3.5
    masked = critic_loss(q, target, weight=torch.tensor([True, True, False]))
    assert (masked.total.item(), masked.weight.item(), masked.total.dtype) == (7.0, 2.0, torch.float32)


def test_actor_loss_by_hand():
    """0.5 · (−1) − 2 and 0.5 · 3 − 4."""
    logprob, q = torch.tensor([-1.0, 3.0], requires_grad=True), torch.tensor([[2.0, 6.0], [5.0, 4.0]], requires_grad=True)
    output = sac_actor_loss(logprob, q, alpha=0.5)
    output.total.backward()
    assert output.total.item() == -5.0
    assert (logprob.grad.tolist(), q.grad.tolist()) == ([0.5, 0.5], [[-1.0, 0.0], [0.0, -1.0]])
    assert means(output.metrics) == {"actor_loss": -2.5, "entropy": -1.0, "actor_q": 3.0}
    assert sac_actor_loss(logprob, q, alpha=0.5, aggregate="mean").total.item() == -7.5


def test_the_actor_does_not_train_its_temperature():
    alpha = torch.tensor(0.5, requires_grad=True)
    logprob = torch.tensor([1.0], requires_grad=True)
    sac_actor_loss(logprob, torch.zeros(1, 2), alpha=alpha).total.backward()
    assert alpha.grad is None
    assert logprob.grad.item() == 0.5


@pytest.mark.parametrize(
    ("word", "raw", "alpha", "slope"),
    [("exp", math.log(0.2), 0.2, 0.2), ("softplus", math.log(math.expm1(0.2)), 0.2, 1 - math.exp(-0.2)), ("fixed", 0.2, 0.2, 0.0)],
)
def test_temperatures(word, raw, alpha, slope):
    x = torch.tensor(raw, dtype=torch.float64, requires_grad=True)
    found = temperature(x, parametrisation=word)
    assert found.item() == pytest.approx(alpha) == reference.temperature(raw, parametrisation=word)
    assert initial_temperature(alpha, parametrisation=word) == pytest.approx(raw)
    assert reference.initial_temperature(alpha, parametrisation=word) == pytest.approx(raw)
    if slope:
        found.backward()
        assert x.grad.item() == pytest.approx(slope)
    else:
        assert not found.requires_grad


def test_a_tiny_and_a_huge_temperature_survive_softplus():
    assert initial_temperature(1e-9, parametrisation="softplus") == pytest.approx(math.log(1e-9))
    assert initial_temperature(1e4, parametrisation="softplus") == 1e4


def test_the_temperature_rises_while_the_entropy_is_too_low():
    """−α (log π + H̄) with α = e⁰·¹: entropy 1 is below 2, so log α must rise; its gradient is −α (−1 + 2)."""
    raw, logprob = torch.tensor(0.1, requires_grad=True), torch.tensor([-1.0], requires_grad=True)
    output = temperature_loss(temperature(raw), logprob, target_entropy=2.0)
    output.total.backward()
    assert raw.grad.item() == pytest.approx(-math.exp(0.1))
    assert output.total.item() == pytest.approx(-math.exp(0.1))
    assert logprob.grad is None
    assert means(output.metrics) == pytest.approx({"alpha_loss": -math.exp(0.1), "alpha": math.exp(0.1)})
    logged = temperature_loss(raw, logprob, target_entropy=2.0)
    assert logged.total.item() == pytest.approx(-0.1)


def test_joint_batches_and_their_parts():
    now = {"obs": {"state": torch.tensor([[1.0], [2.0]])}, "action": torch.tensor([[3.0], [4.0]])}
    after = {"obs": {"state": torch.tensor([[5.0], [6.0]])}, "action": torch.tensor([[7.0], [8.0]])}
    joint = joint_batch(now, after)
    assert joint["obs"]["state"].tolist() == [[1.0], [2.0], [5.0], [6.0]]
    lists = {"obs": {"state": now["obs"]["state"].tolist()}}, {"obs": {"state": after["obs"]["state"].tolist()}}
    assert reference.joint_batch(*lists) == {"obs": {"state": joint["obs"]["state"].tolist()}}
    q, q_next = joint_parts(torch.arange(8.0).reshape(4, 2).requires_grad_())
    assert (q.tolist(), q_next.tolist()) == ([[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]])
    assert (q.requires_grad, q_next.requires_grad) == (True, False)
    with pytest.raises(ShapeError, match=r"joint_batch\(after\)"):
        joint_batch(torch.zeros(2, 1), torch.zeros(3, 1))
    for wrong in (torch.zeros(3, 2), torch.zeros(4)):
        with pytest.raises(ShapeError, match=r"joint_parts\(q_joint\): expected \[2 B, N\]"):
            joint_parts(wrong)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from(["min", "mean"]),
    st.booleans(),
    st.sampled_from(["standard", "always"]),
    st.sampled_from([None, 0.7]),
)
def test_crossq_learns_from_its_first_half_only(seed, rows, aggregate, backup_entropy, bootstrap, huber_delta):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(2 * rows, 2, generator=g, dtype=torch.float64, requires_grad=True)
    reward, logprob = torch.randn(2, rows, generator=g, dtype=torch.float64)
    terminated, weight = torch.rand(2, rows, generator=g, dtype=torch.float64) < 0.5
    words = {"gamma": 0.9, "alpha": 0.3, "aggregate": aggregate, "backup_entropy": backup_entropy}
    words |= {"bootstrap": bootstrap, "huber_delta": huber_delta}
    output = crossq_critic_loss(q, reward, terminated, logprob, weight=weight, **words)
    output.total.backward()
    assert not q.grad[rows:].any()
    assert not q.grad[:rows][~weight].any()
    lists = [x.tolist() for x in (q, reward, terminated, logprob)]
    total, count, metrics = reference.crossq_critic_loss(*lists, weight=weight.tolist(), **words)
    assert (output.total.item(), output.weight.item()) == (pytest.approx(total), count)
    assert means(output.metrics) == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: aggregate_q(torch.zeros(2)), ShapeError, r"aggregate_q\(q\)"),
        (lambda: aggregate_q(torch.zeros(2, 0)), ShapeError, "at least one critic"),
        (lambda: aggregate_q(torch.zeros(2, 2), aggregate="max"), ConfigError, "one of min, mean, found 'max'"),
        (lambda: sac_target(REWARD, TERMINATED, Q_NEXT, torch.zeros(2), **GAMMA), ShapeError, r"sac_target\(logprob_next\)"),
        (lambda: sac_target(REWARD, TERMINATED[:2], Q_NEXT, LOGPROB_NEXT, **GAMMA), ShapeError, r"td_target\(terminated\)"),
        (lambda: sac_target(REWARD[:2], TERMINATED, Q_NEXT, LOGPROB_NEXT, **GAMMA), ShapeError, r"td_target\(terminated\)"),
        (lambda: td_target(Q_NEXT, TERMINATED, REWARD, gamma=0.9), ShapeError, r"td_target\(reward\): expected shape \(3\)"),
        (lambda: td_target(REWARD, TERMINATED, Q_NEXT, gamma=0.9), ShapeError, r"td_target\(value_next\)"),
        (lambda: td_target(REWARD, TERMINATED, REWARD, gamma=1.1), ConfigError, r"td_target\(gamma\): .* \[0, 1\]"),
        (lambda: td_target(REWARD, TERMINATED, REWARD, gamma=-0.1), ConfigError, r"td_target\(gamma\)"),
        (lambda: td_target(REWARD, TERMINATED, REWARD, gamma=torch.ones(2)), ShapeError, r"td_target\(gamma\)"),
        (lambda: td_target(REWARD, TERMINATED, REWARD, gamma=0.9, bootstrap="never"), ConfigError, r"td_target\(bootstrap\)"),
        (lambda: td_error(Q_NEXT, torch.zeros(2)), ShapeError, r"td_error\(target\)"),
        (lambda: td_error(REWARD, REWARD), ShapeError, r"td_error\(q\): expected shape \(3, any\)"),
        (lambda: critic_loss(Q_NEXT, REWARD, huber_delta=0.0), ConfigError, r"critic_loss\(huber_delta\)"),
        (lambda: sac_actor_loss(REWARD, Q_NEXT, alpha=-0.1), ConfigError, r"sac_actor_loss\(alpha\)"),
        (lambda: sac_actor_loss(REWARD, Q_NEXT, alpha=torch.ones(1)), ShapeError, r"sac_actor_loss\(alpha\)"),
        (lambda: redq_subset(3, 4, torch.Generator()), ConfigError, r"redq_subset\(size\)"),
        (lambda: redq_subset(3, 0, torch.Generator()), ConfigError, r"redq_subset\(size\)"),
        (lambda: temperature(torch.zeros(()), parametrisation="log"), ConfigError, r"temperature\(parametrisation\)"),
        (lambda: temperature(torch.zeros(1)), ShapeError, r"temperature\(raw\)"),
        (lambda: initial_temperature(0.0), ConfigError, r"initial_temperature\(alpha\)"),
        (lambda: initial_temperature(1.0, parametrisation="log"), ConfigError, r"initial_temperature\(parametrisation\)"),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.q_value import q_value_loss
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means, merge

Q = torch.tensor([[1.0, 2.0], [4.0, 0.0]])
TARGET = torch.tensor([3.0, 1.0])


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 4.0 + 1.0 + 9.0 + 1.0),
        ({"huber_delta": 1.5}, 1.5 * 1.25 + 0.5 + 1.5 * 2.25 + 0.5),
        ({"weight": torch.tensor([2.0, 0.5])}, 10.0 + 5.0),
    ],
)
def test_by_hand(options, total):
    output, priority = q_value_loss(Q, TARGET, **options)
    assert (output.total.item(), output.weight.item()) == (pytest.approx(total), 2.0)
    assert priority.tolist() == [1.5, 2.0]
    found = means(output.metrics)
    assert (found["q_value"], found["q_target"], found["td_error"]) == (1.75, 2.0, 1.75)
    assert found["critic_loss"] == pytest.approx(total / 2)
    # the means 1.5 and 2 have errors 1.5 and −1: variance 1.5625; targets 3 and 1 have variance 1
    assert found["explained_variance"] == pytest.approx(-0.5625)


def seeded(rows, critics, seed):
    random = np.random.default_rng(seed)
    q, target, weight = (torch.tensor(random.normal(size=shape)) for shape in ((rows, critics), rows, rows))
    return q, target, weight.abs(), torch.tensor(random.random(rows) < 0.7)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.none() | st.floats(0.1, 3), st.booleans(), st.booleans(), st.integers(0, 10_000))
def test_equals_the_reference(rows, critics, delta, weighted, masked, seed):
    q, target, weight, mask = seeded(rows, critics, seed)
    weight, mask = weight if weighted else None, mask if masked else None
    before = q.clone(), target.clone()
    output, priority = q_value_loss(q, target, weight, huber_delta=delta, mask=mask)
    lists = (None if x is None else x.tolist() for x in (q, target, weight))
    total, count, expected = reference.q_value_loss(*lists, delta, None if mask is None else mask.tolist())
    assert (output.total.item(), output.weight.item()) == (pytest.approx(total, abs=1e-12), count)
    np.testing.assert_allclose(priority, expected, atol=1e-12)
    assert torch.equal(q, before[0])
    assert torch.equal(target, before[1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_the_split_changes_no_gradient(seed, sizes):
    tensors = seeded(sum(sizes), 2, seed)

    def gradient(pieces):
        leaf = tensors[0].clone().requires_grad_()
        columns = zip(*(x.split(pieces) for x in (leaf, *tensors[1:])), strict=True)
        outputs = [q_value_loss(q, y, w, mask=m, huber_delta=1.0)[0] for q, y, w, m in columns]
        sum(output.total for output in outputs).backward()
        return leaf.grad / sum(output.weight for output in outputs).clamp(min=1), merge(output.metrics for output in outputs)

    (expected, metrics), (found, merged) = gradient([sum(sizes)]), gradient(sizes)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert all(merged[name].parts == pytest.approx(metrics[name].parts) for name in metrics)


def test_gradients():
    q, target, weight, mask = seeded(4, 2, 0)
    for delta in (None, 0.5):
        assert torch.autograd.gradcheck(
            lambda x, delta=delta: q_value_loss(x, target, weight, huber_delta=delta, mask=mask)[0].total, [q.requires_grad_()]
        )


def test_neither_target_nor_weight_is_differentiated_and_priorities_are_constants():
    q, target, weight = Q.clone().requires_grad_(), TARGET.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    output, priority = q_value_loss(q, target, weight)
    output.total.backward()
    assert target.grad is None
    assert weight.grad is None
    assert not priority.requires_grad


def test_garbage_where_masked():
    mask = torch.tensor([True, False])
    q = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], requires_grad=True)
    output, priority = q_value_loss(q, torch.tensor([3.0, torch.nan]), torch.tensor([1.0, torch.nan]), mask=mask)
    output.total.backward()
    assert (output.total.item(), output.weight.item(), priority.tolist()) == (5.0, 1.0, [1.5, 0.0])
    assert q.grad.tolist() == [[-4.0, -2.0], [0.0, 0.0]]
    empty, _ = q_value_loss(Q, TARGET, mask=mask & False)
    assert (empty.total.item(), empty.weight.item()) == (0.0, 0.0)


def test_one_critic_needs_no_axis():
    one, _ = q_value_loss(Q[:, 0], TARGET)
    two, _ = q_value_loss(Q[:, :1], TARGET)
    assert one == two


def test_half_precision():
    output, priority = q_value_loss(Q.bfloat16(), TARGET.bfloat16())
    assert (output.total.item(), output.total.dtype, priority.dtype) == (15.0, torch.float32, torch.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q[None], TARGET), r"q_value_loss\(q\): expected \[B, N\] or \[B\]"),
        ((Q, TARGET[:1]), r"q_value_loss\(target\)"),
        ((Q, TARGET, TARGET[:1]), r"q_value_loss\(weight\)"),
    ],
)
def test_shapes_are_checked(arguments, message):
    with pytest.raises(ShapeError, match=message):
        q_value_loss(*arguments)
    with pytest.raises(ShapeError, match=r"q_value_loss\(mask\)"):
        q_value_loss(Q, TARGET, mask=torch.ones(1))
    with pytest.raises(ConfigError, match=r"huber_delta: expected a value in \(0, inf\]"):
        q_value_loss(Q, TARGET, huber_delta=0.0)

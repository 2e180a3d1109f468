import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.terms import (
    TOKEN_MEAN,
    Aggregation,
    Terms,
    aggregate,
    at_least_float32,
    joined,
    like,
    per_decision,
    summed,
)
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import Metric, means, merge

MODES = [
    Aggregation("token-mean"),
    Aggregation("seq-mean-token-sum"),
    Aggregation("seq-mean-token-mean"),
    Aggregation("constant-length", 7),
]
LOSS = torch.tensor([[1.0, 2.0, 4.0], [8.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("aggregation", "total", "weight"),
    [
        (Aggregation("token-mean"), 15.0, 4.0),
        (Aggregation("seq-mean-token-sum"), 15.0, 2.0),
        (Aggregation("seq-mean-token-mean"), 7.0 / 3.0 + 8.0, 2.0),
        (Aggregation("constant-length", 5), 3.0, 2.0),
    ],
)
def test_by_hand(aggregation, total, weight):
    found = aggregate(LOSS, MASK, aggregation)
    assert (found.total.item(), found.weight.item()) == (pytest.approx(total), weight)
    assert found.metrics == {"loss": Metric(15.0, 4.0)}
    assert found.total.shape == found.weight.shape == ()


def seeded(shape, seed, density=0.6):
    random = np.random.default_rng(seed)
    return torch.tensor(random.normal(size=shape)), torch.tensor(random.random(shape) < density)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 6))


@settings(max_examples=40)
@given(shapes, st.integers(0, 10_000), st.sampled_from(MODES))
def test_equals_the_reference(shape, seed, aggregation):
    loss, mask = seeded(shape, seed)
    before = loss.clone(), mask.clone()
    found = aggregate(loss, mask, aggregation)
    total, weight = reference.aggregate(loss.tolist(), mask.tolist(), aggregation.mode, aggregation.length)
    assert (found.total.item(), found.weight.item()) == (pytest.approx(total, abs=1e-12), weight)
    assert found.total.dtype == found.weight.dtype == torch.float64
    factor, weight = aggregation.factors(mask, torch.float64)
    expected = reference.factors(mask.tolist(), aggregation.mode, aggregation.length)
    np.testing.assert_allclose(factor, expected[0], atol=1e-15)
    assert weight == expected[1]
    assert torch.equal(loss, before[0])
    assert torch.equal(mask, before[1])


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=1, max_size=5), st.sampled_from(MODES))
def test_the_split_into_micro_batches_and_ranks_changes_no_gradient(seed, sizes, aggregation):
    loss, mask = seeded((sum(sizes), 4), seed)

    def gradient(pieces):
        leaf = loss.clone().requires_grad_()
        outputs = [aggregate(x.square(), m, aggregation) for x, m in zip(leaf.split(pieces), mask.split(pieces), strict=True)]
        sum(output.total for output in outputs).backward()
        return leaf.grad / sum(output.weight for output in outputs).clamp(min=1), merge(output.metrics for output in outputs)

    (expected, metrics), (found, merged) = gradient([sum(sizes)]), gradient(sizes)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert merged["loss"].sum == pytest.approx(metrics["loss"].sum)
    assert merged["loss"].weight == metrics["loss"].weight


@settings(max_examples=40)
@given(shapes, st.integers(0, 10_000))
def test_agrees_with_the_means_of_verl(shape, seed):
    """The four formulas of verl's `agg_loss`, written out; rows without tokens do not count in a mean over sequences."""
    loss, mask = seeded(shape, seed)
    mask[0, 0] = True
    tokens, sums = mask.sum(1), (loss * mask).sum(1)
    rows = tokens > 0
    expected = {
        "token-mean": (loss * mask).sum() / mask.sum(),
        "seq-mean-token-sum": sums[rows].mean(),
        "seq-mean-token-mean": (sums[rows] / tokens[rows]).mean(),
    }
    for mode, value in expected.items():
        found = aggregate(loss, mask, Aggregation(mode))
        torch.testing.assert_close(found.total / found.weight, value)
    # seq-mean-token-sum-norm divides by the length alone, so it is the total
    torch.testing.assert_close(aggregate(loss, mask, Aggregation("constant-length", shape[1])).total, sums.sum() / shape[1])


@settings(max_examples=20)
@given(shapes, st.integers(0, 10_000))
def test_agrees_with_the_loss_types_of_trl(shape, seed):
    """grpo, bnpo, dr_grpo and dapo of TRL, written out; every row has a token there."""
    loss, mask = seeded(shape, seed)
    mask[:, 0] = True
    rows, limit = shape[0], shape[1] + 2
    batch = {
        Aggregation("seq-mean-token-mean"): ((loss * mask).sum(-1) / mask.sum(-1)).mean(),
        Aggregation("token-mean"): (loss * mask).sum() / mask.sum(),
        Aggregation("constant-length", limit): (loss * mask).sum() / (rows * limit),
    }
    for aggregation, value in batch.items():
        found = aggregate(loss, mask, aggregation)
        torch.testing.assert_close(found.total / found.weight, value)


@pytest.mark.parametrize("aggregation", MODES)
def test_garbage_where_masked_neither_counts_nor_reaches_the_gradient(aggregation):
    loss = torch.where(MASK, LOSS, torch.nan).requires_grad_()
    output = aggregate(loss, MASK, aggregation)
    output.total.backward()
    torch.testing.assert_close(output.total.detach(), aggregate(LOSS, MASK, aggregation).total)
    torch.testing.assert_close(loss.grad, aggregation.factors(MASK)[0])


@pytest.mark.parametrize("aggregation", MODES)
def test_a_batch_without_decisions_weighs_nothing(aggregation):
    found = aggregate(LOSS, MASK & False, aggregation)
    assert (found.total.item(), found.weight.item()) == (0.0, 0.0)
    assert found.metrics["loss"].weight == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_in_single_precision_at_least(dtype):
    found = aggregate(torch.ones(3, 1000, dtype=dtype), torch.ones(3, 1000, dtype=torch.bool))
    assert (found.total.item(), found.total.dtype) == (3000.0, torch.float32)


def test_a_mask_of_numbers_is_a_mask():
    assert torch.equal(TOKEN_MEAN.factors(MASK.long())[0], MASK.float())


def test_joined_adds_losses_and_keeps_all_metrics():
    one, two = torch.ones(1, 2), torch.full((1, 2), 3.0)
    parts = [Terms(one, {"a": one}, {"v": (one, two)}), Terms(two, {"b": two}, {"w": (two, one)}), Terms(two, {"c": one})]
    found = joined(parts)
    assert torch.equal(found.loss, torch.full((1, 2), 7.0))
    assert list(found.observed) == ["a", "b", "c"]
    assert list(found.explained) == ["v", "w"]
    assert parts[0].observed.keys() == {"a"}
    metrics = summed(found, torch.tensor([[True, True]])).metrics
    assert means({name: metrics[name] for name in "abc"}) == {"a": 1.0, "b": 3.0, "c": 1.0}
    assert metrics["w"].parts == (2.0, 2.0, 2.0, 6.0, 18.0)
    assert metrics["v"].parts == (2.0, 6.0, 18.0, 2.0, 2.0)


def test_metrics_carry_no_gradient():
    leaf = torch.ones(1, 2, requires_grad=True)
    metrics = summed(Terms(leaf, {"a": leaf}), torch.ones(1, 2, dtype=torch.bool)).metrics
    assert metrics["a"] == Metric(2.0, 2.0)
    assert all(isinstance(part, float) for part in metrics["a"].parts)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_elements_of_a_decision_are_averaged(shape):
    x = torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape)
    np.testing.assert_allclose(per_decision(x), reference.per_decision(x.tolist()))
    for b, t in itertools.product(range(2), range(3)):
        assert per_decision(x)[b, t] == x[b, t].mean()
    assert like(x[..., 0], x).shape == (*x.shape[:-1], 1)
    assert at_least_float32(x) is x
    assert at_least_float32(x.bfloat16()).dtype == torch.float32


def test_shapes_and_parameters_are_checked():
    with pytest.raises(ShapeError, match=r"aggregate\(loss\): expected shape \(3, 3\), found \(3, 3, 1\)"):
        aggregate(LOSS[..., None], MASK)
    for arguments in (("token-mean", 3), ("constant-length", None), ("constant-length", 0)):
        with pytest.raises(ConfigError, match=r"loss_agg_length: expected"):
            Aggregation(*arguments)
    with pytest.raises(ConfigError, match=r"loss_agg_func: no aggregation 'token-maen'. Did you mean 'token-mean'"):
        Aggregation("token-maen")
    assert Aggregation("constant-length", 1).length == 1

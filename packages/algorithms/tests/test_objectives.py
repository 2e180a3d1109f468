"""What is true of every loss over transitions: against the reference, over weights, splits, types and garbage."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.objectives import awr, cql, critic, discrete, distributional, imitation, iql, sac, td3
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import means, merge


@dataclass(frozen=True)
class Case:
    """A loss, its reference, and what it takes: the axes after B of each tensor."""

    fast: Callable[..., Any]
    slow: Callable[..., Any]
    rows: dict[str, tuple[int, ...]]
    grads: set[str]
    options: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)

    def inputs(self, rows, seed, dtype=torch.float64):
        g = torch.Generator().manual_seed(seed)
        found = {name: torch.tensor(value, dtype=dtype) for name, value in self.scalars.items()}
        for name, tail in self.rows.items():
            x = torch.randn(rows, *tail, generator=g, dtype=torch.float64)
            found[name] = x > 0 if name == "executed" else x.to(dtype)
        return found

    def leaves(self, inputs):
        return {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in inputs.items()}


def cql_whole(q, target, q_samples, log_density, *, floor=None, temperature, weight=None, **options):
    penalty = cql.cql_penalty(q, q_samples, log_density, temperature=temperature, floor=floor, weight=weight)
    return cql.cql_critic_loss(q, target, penalty, weight=weight, **options)


def slow_cql_whole(q, target, q_samples, log_density, *, floor=None, temperature, weight=None, **options):
    penalty = reference.cql_penalty(q, q_samples, log_density, temperature=temperature, floor=floor)
    return reference.cql_critic_loss(q, target, penalty, weight=weight, **options)


Q, ROW, CHUNK = (3,), (), (2, 3)
CQL_ROWS = {"q": Q, "target": ROW, "q_samples": (4, 3), "log_density": (4,)}
CQL_GRADS = {"q", "q_samples"}
CASES = {
    "critic": Case(critic.critic_loss, reference.critic_loss, {"q": Q, "target": ROW}, {"q"}),
    "critic, huber": Case(critic.critic_loss, reference.critic_loss, {"q": Q, "target": ROW}, {"q"}, {"huber_delta": 0.8}),
    "sac actor": Case(sac.sac_actor_loss, reference.sac_actor_loss, {"logprob": ROW, "q": Q}, {"logprob", "q"}, {"alpha": 0.3}),
    "sac actor, mean": Case(
        sac.sac_actor_loss,
        reference.sac_actor_loss,
        {"logprob": ROW, "q": Q},
        {"logprob", "q"},
        {"alpha": 2.0, "aggregate": "mean"},
    ),
    "temperature": Case(
        sac.temperature_loss, reference.temperature_loss, {"logprob": ROW}, {"alpha"}, {"target_entropy": -1.7}, {"alpha": 0.4}
    ),
    "td3 actor": Case(td3.td3_actor_loss, reference.td3_actor_loss, {"q": Q}, {"q"}),
    "td3 actor, min": Case(td3.td3_actor_loss, reference.td3_actor_loss, {"q": Q}, {"q"}, {"aggregate": "min", "scale": 0.4}),
    "td3+bc actor": Case(
        td3.td3_bc_actor_loss,
        reference.td3_bc_actor_loss,
        {"q": Q, "action": (4,), "action_data": (4,)},
        {"q", "action", "action_data"},
        {"scale": 0.7},
    ),
    "td3+bc actor, chunk": Case(
        td3.td3_bc_actor_loss,
        reference.td3_bc_actor_loss,
        {"q": Q, "action": CHUNK, "action_data": CHUNK, "executed": (2,)},
        {"q", "action", "action_data"},
        {"scale": 0.7, "aggregate": "mean", "bc_weight": 0.3},
    ),
    "iql value": Case(iql.iql_value_loss, reference.iql_value_loss, {"value": ROW, "q": Q}, {"value"}, {"expectile": 0.8}),
    "iql actor": Case(
        iql.iql_actor_loss,
        reference.iql_actor_loss,
        {"logprob": ROW, "value": ROW, "q": Q},
        {"logprob"},
        {"beta": 2.0, "max_weight": 3.0, "aggregate": "mean"},
    ),
    "weighted bc": Case(awr.weighted_bc_loss, reference.weighted_bc_loss, {"logprob": ROW, "factor": ROW}, {"logprob"}),
    "bc": Case(imitation.bc_loss, reference.bc_loss, {"logprob": ROW}, {"logprob"}),
    "bc, chunk": Case(imitation.bc_loss, reference.bc_loss, {"logprob": (4,), "executed": (4,)}, {"logprob"}),
    "bc, elements": Case(imitation.bc_loss, reference.bc_loss, {"logprob": CHUNK, "executed": (2,)}, {"logprob"}),
    "bc, all elements": Case(imitation.bc_loss, reference.bc_loss, {"logprob": CHUNK}, {"logprob"}),
    "action, l2": Case(
        imitation.action_loss,
        reference.action_loss,
        {"action": (4,), "action_data": (4,)},
        {"action", "action_data"},
    ),
    "action, l1, chunk": Case(
        imitation.action_loss,
        reference.action_loss,
        {"action": CHUNK, "action_data": CHUNK, "executed": (2,)},
        {"action", "action_data"},
        {"norm": "l1"},
    ),
    "cql": Case(cql_whole, slow_cql_whole, CQL_ROWS, CQL_GRADS, {"alpha": 0.5, "gap": 0.3, "temperature": 1.0}),
    "cal-ql": Case(
        cql_whole,
        slow_cql_whole,
        {**CQL_ROWS, "floor": (4,)},
        CQL_GRADS,
        {"alpha": 5.0, "temperature": 0.6, "huber_delta": 0.7},
    ),
    "discrete sac actor": Case(
        discrete.discrete_sac_actor_loss,
        reference.discrete_sac_actor_loss,
        {"logprob": (4,), "q": (4, 3)},
        {"logprob"},
        {"alpha": 0.3, "aggregate": "mean"},
    ),
    "categorical": Case(distributional.categorical_loss, reference.categorical_loss, {"logit": (5,), "target": (5,)}, {"logit"}),
    "quantile": Case(
        distributional.quantile_huber_loss,
        reference.quantile_huber_loss,
        {"quantile": (4,), "target": (3,)},
        {"quantile"},
        {"kappa": 0.7},
    ),
    "quantile, drawn": Case(
        distributional.quantile_huber_loss,
        reference.quantile_huber_loss,
        {"quantile": (4,), "target": (3,), "tau": (4,)},
        {"quantile"},
        {"kappa": 0.0},
    ),
    "cql alpha": Case(cql.cql_alpha_loss, reference.cql_alpha_loss, {"penalty": Q}, {"alpha"}, {"gap": 0.2}, {"alpha": 1.3}),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
seeds = st.integers(0, 10_000)


def weights(rows, seed):
    """Importance weights, of which some are 0."""
    g = torch.Generator().manual_seed(seed + 1)
    w = torch.rand(rows, generator=g, dtype=torch.float64) + 0.5
    return torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, w)


def as_lists(inputs):
    return {name: x.tolist() for name, x in inputs.items()}


def agree(output, expected, **tolerance):
    total, weight, metrics = expected
    assert output.total.shape == output.weight.shape == ()
    assert output.total.item() == pytest.approx(total, **tolerance)
    assert output.weight.item() == weight
    assert means(output.metrics) == pytest.approx(metrics, nan_ok=True, **tolerance)


@each_case
@settings(max_examples=8)
@given(seeds, st.integers(1, 6), st.booleans())
def test_equals_the_reference_and_leaves_its_inputs_alone(case, seed, rows, weighted):
    inputs = case.inputs(rows, seed) | ({"weight": weights(rows, seed)} if weighted else {})
    before = {name: x.clone() for name, x in inputs.items()}
    agree(case.fast(**inputs, **case.options), case.slow(**as_lists(inputs), **case.options), rel=1e-9, abs=1e-12)
    assert all(torch.equal(before[name], x) for name, x in inputs.items())


@each_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-5), (torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_arithmetic_is_in_float32_at_least(case, dtype, tolerance):
    inputs = case.inputs(5, 3, dtype)
    output = case.fast(**inputs, **case.options)
    assert output.total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    agree(output, case.slow(**as_lists(inputs), **case.options), rel=tolerance, abs=tolerance)


def gradients(case, inputs, parts, weight):
    """Total, weight, metrics and gradients, summed over parts of the rows."""
    leaves = case.leaves(inputs)
    total, count, metrics = 0.0, 0.0, []
    for index in parts:
        piece = {name: x if name in case.scalars else x[index] for name, x in leaves.items()}
        output = case.fast(**piece, **case.options, weight=weight[index])
        output.total.backward()
        total, count = total + output.total.item(), count + output.weight.item()
        metrics.append(output.metrics)
    return total, count, means(merge(metrics)), {name: x.grad for name, x in leaves.items() if name in case.grads}


@each_case
@settings(max_examples=5)
@given(seeds)
def test_neither_the_split_nor_the_order_changes_a_gradient(case, seed):
    inputs, weight = case.inputs(6, seed), weights(6, seed)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    total, count, metrics, grads = gradients(case, inputs, [torch.arange(6)], weight)
    for parts in (order.split([1, 2, 3]), order.split(1), [order]):
        found = gradients(case, inputs, parts, weight)
        assert found[0] == pytest.approx(total, rel=1e-9, abs=1e-12)
        assert found[1] == count
        assert found[2] == pytest.approx(metrics, nan_ok=True, rel=1e-9, abs=1e-12)
        for name, grad in grads.items():
            torch.testing.assert_close(found[3][name], grad, atol=1e-9, rtol=0)


@each_case
@settings(max_examples=4)
@given(seeds, st.sampled_from([float("nan"), float("inf")]))
def test_a_row_of_weight_zero_may_hold_anything(case, seed, garbage):
    inputs, weight = case.inputs(5, seed), torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0])
    dirty = {name: x.clone() for name, x in inputs.items()}
    for name in case.rows:
        if name != "executed":
            dirty[name][weight == 0] = garbage
    expected = gradients(case, inputs, [torch.arange(5)], weight)
    found = gradients(case, dirty, [torch.arange(5)], weight)
    assert found[:2] == expected[:2]
    assert found[2] == pytest.approx(expected[2], nan_ok=True, rel=0, abs=0)
    for name, grad in expected[3].items():
        assert torch.equal(found[3][name], grad)
        if name in case.rows:
            assert not grad[weight == 0].any()


@each_case
def test_nothing_weighs_nothing(case):
    output = case.fast(**case.inputs(3, 0), **case.options, weight=torch.zeros(3))
    assert (output.total.item(), output.weight.item()) == (0.0, 0.0)


@each_case
def test_gradients_are_those_of_finite_differences_and_go_nowhere_else(case):
    inputs = case.inputs(3, 5)
    leaves = case.leaves(inputs)
    case.fast(**leaves, **case.options).total.backward()
    assert {name for name, x in leaves.items() if x.grad is not None and x.grad.any()} == case.grads
    names = sorted(case.grads)
    others = {name: x for name, x in inputs.items() if name not in case.grads}

    def total(*values):
        return case.fast(
            **dict(zip(names, values, strict=True)), **others, **case.options, weight=torch.tensor([1.0, 0.0, 2.5])
        ).total

    assert torch.autograd.gradcheck(total, [inputs[name].clone().requires_grad_() for name in names])


@each_case
def test_a_wrong_shape_names_the_argument(case):
    inputs = case.inputs(3, 0)
    with pytest.raises(ShapeError, match=r"\(weight\): expected"):
        case.fast(**inputs, **case.options, weight=torch.ones(4))
    first = next(iter(case.rows))
    for name, x in inputs.items():
        wrong = x[None, None, None] if name in case.scalars or name == first else torch.cat([x, x[:1]])
        with pytest.raises(ShapeError, match=r"\w+\(\w+\): expected"):
            case.fast(**inputs | {name: wrong}, **case.options)

"""Everything that looks ahead in time: hand-computed numbers, then each function against its executable specification."""

import math
from functools import partial

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinf.algorithms
from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.returns import (
    DiscountedReturns,
    NStep,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    td_errors,
)
from rlinf.algorithms.advantages.statistics import whiten
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

# rlax's multistep_test.py: r_t, discount_t and v_t (the value after each step) of two sequences
R = torch.tensor([[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]])
DISCOUNT = torch.tensor([[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]])
V = torch.tensor([[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]])
VALUE = torch.cat([torch.full((2, 1), math.nan), V], dim=1)  # nobody's return depends on the first value
NEVER = torch.zeros(2, 5, dtype=torch.bool)


def test_lambda_returns_of_rlax():
    expected = [[1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4], [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99]]
    found = lambda_returns(R, VALUE, NEVER, NEVER, gamma=DISCOUNT, lam=0.75)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=0.0)


def test_discounted_returns_of_rlax():
    expected = [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]
    found = discounted_returns(R, NEVER, NEVER, gamma=DISCOUNT, value=VALUE)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, (R + DISCOUNT * V).tolist()),
        (3, [[2.8, -3.15, 0.7, 1.7, 3.4], [1.2155, 0.714, 0.2576, 3.192, 3.99]]),
        (5, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
        (7, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
    ],
)
def test_n_step_returns_of_rlax(n, expected):
    found = n_step_returns(R, VALUE, NEVER, NEVER, gamma=DISCOUNT, n=n)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_td_errors_by_hand():
    value = torch.tensor([[2.0, 3.0, 5.0, 7.0]])
    reward = torch.tensor([[1.0, 1.0, 1.0]])
    end = torch.tensor([[False, True, False]])
    no = torch.zeros_like(end)
    by_end = {(no, no): [0.5, 0.5, -0.5], (end, no): [0.5, -2.0, -0.5], (no, end): [0.5, 0.5, -0.5]}
    for (terminated, truncated), expected in by_end.items():
        found = td_errors(reward, value, terminated, truncated, gamma=0.5)
        torch.testing.assert_close(found, torch.tensor([expected]))


def test_returns_stop_at_ends_by_hand():
    reward, value = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[9.0, 10.0, 20.0, 40.0]])
    first = torch.tensor([[True, False, False]])
    no = torch.zeros_like(first)
    cases = [
        (no, no, None, [3.0, 4.0, 4.0]),
        (no, no, value, [8.0, 14.0, 24.0]),
        (first, no, value, [1.0, 14.0, 24.0]),
        (no, first, value, [6.0, 14.0, 24.0]),
        (no, first, None, [1.0, 4.0, 4.0]),
    ]
    for terminated, truncated, bootstrap, expected in cases:
        found = discounted_returns(reward, terminated, truncated, gamma=0.5, value=bootstrap)
        torch.testing.assert_close(found, torch.tensor([expected]))


def test_tokens_of_others_cost_no_discount():
    """A conversation: two tokens of the model, two of the tool, one of the model; as if the tool had said nothing."""
    reward, mask = torch.tensor([[0.0, 0.0, 9.0, 9.0, 8.0]]), torch.tensor([[True, True, False, False, True]])
    no = torch.zeros_like(mask)
    found = discounted_returns(reward, no, no, gamma=0.5, mask=mask)
    torch.testing.assert_close(found, torch.tensor([[2.0, 4.0, 0.0, 0.0, 8.0]]))


def without(options, *names):
    return {name: option for name, option in options.items() if name not in names}


# Of the package, or of its specifications: a function, its inputs and options of which not all are its own.
RHO = ("clip_rho", "clip_c", "clip_pg_rho")
CALLS = {
    "gae": lambda of, x, o: of.gae(*x, **without(o, "n", "log_ratio", *RHO)),
    "td_errors": lambda of, x, o: of.td_errors(*x, **without(o, "lam", "n", "log_ratio", *RHO)),
    "lambda_returns": lambda of, x, o: of.lambda_returns(*x, **without(o, "n", "log_ratio", *RHO)),
    "discounted_returns": lambda of, x, o: of.discounted_returns(
        x[0], *x[2:4], value=x[1], **without(o, "lam", "n", "log_ratio", *RHO)
    ),
    "without a critic": lambda of, x, o: of.discounted_returns(x[0], *x[2:4], gamma=o["gamma"], mask=o["mask"]),
    "n_step_returns": lambda of, x, o: of.n_step_returns(*x, **without(o, "log_ratio", *RHO)),
    "vtrace": lambda of, x, o: of.vtrace(*x, o["log_ratio"], **without(o, "n", "log_ratio")),
}
FAST = {name: partial(call, rlinf.algorithms) for name, call in CALLS.items()}
SLOW = {name: partial(call, reference) for name, call in CALLS.items()}


def drawn(draw, dtype=torch.float64):
    """Rows with ends and gaps; whatever must not matter is NaN."""
    torch.default_generator.manual_seed(draw(st.integers(0, 10_000)))
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(1, 7))
    mask = torch.rand(rows, columns) < draw(st.sampled_from([0.0, 0.6, 1.0])) if draw(st.booleans()) else None
    terminated, truncated = (torch.rand(rows, columns) < 0.2 for _ in range(2))

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64).to(dtype)

    def factor():
        return (
            draw(st.sampled_from([0.0, 0.3, 1.0]))
            if draw(st.booleans())
            else torch.rand(rows, columns, dtype=torch.float64).to(dtype)
        )

    value_next = normal(rows, columns) if draw(st.booleans()) else None
    wide = value_next is None or draw(st.booleans())
    x = [normal(rows, columns), normal(rows, columns + int(wide)), terminated, truncated]
    options = {"gamma": factor(), "lam": factor(), "value_next": value_next, "log_ratio": normal(rows, columns), "mask": mask}
    options |= {"n": draw(st.integers(1, 4))}
    options |= {name: draw(st.sampled_from([None, 0.7, 1.3])) for name in ("clip_rho", "clip_c", "clip_pg_rho")}
    if mask is not None:
        for tensor in (x[0], *(o for o in options.values() if isinstance(o, torch.Tensor) and o.is_floating_point())):
            tensor[~mask] = math.nan
        after_decision = torch.cat([torch.zeros(rows, 1, dtype=torch.bool), mask], dim=1)
        decided = torch.cat([mask, torch.zeros(rows, 1, dtype=torch.bool)], dim=1)
        x[1][~(after_decision | decided)[:, : x[1].shape[1]]] = math.nan
    return x, options


def plain(x):
    return x.tolist() if isinstance(x, torch.Tensor) else x


def expect_specified(name, x, options, *, dtype, tolerance):
    """A function gives in a type what its specification gives."""
    found = FAST[name](x, options)
    expected = SLOW[name]([plain(t) for t in x], {k: plain(v) for k, v in options.items()})
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, two in pairs:
        assert (one.dtype, one.shape) == (dtype, x[0].shape)
        two = torch.tensor(two, dtype=torch.float64).reshape(one.shape)
        torch.testing.assert_close(one.double(), two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=40)
@given(data=st.data())
def test_equals_its_specification(name, data):
    x, options = drawn(data.draw)
    given_tensors = [t for t in (*x, *options.values()) if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in given_tensors]
    expect_specified(name, x, options, dtype=torch.float64, tolerance=1e-9)
    assert all(torch.equal(a.nan_to_num(99.0), b.nan_to_num(99.0)) for a, b in zip(given_tensors, before, strict=True))


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=10)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_half_precision_is_computed_in_single_precision(name, data, dtype):
    expect_specified(name, *drawn(data.draw, dtype), dtype=torch.float32, tolerance=1e-3)


@pytest.mark.parametrize("double", ["reward", "value", "value_next"])
def test_one_input_in_double_precision_is_enough(double):
    tensors = {name: torch.tensor([[0.5, 0.25]]) for name in ("reward", "value", "value_next")}
    tensors[double] = tensors[double].double()
    no = torch.zeros(1, 2, dtype=torch.bool)
    advantage, target = gae(**tensors, terminated=no, truncated=no, gamma=0.9, lam=0.8)
    assert advantage.dtype == target.dtype == torch.float64


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=15)
@given(data=st.data())
def test_padding_changes_nothing(name, data):
    x, options = drawn(data.draw)
    rows, columns = x[0].shape
    mask = torch.ones(rows, columns, dtype=torch.bool) if options["mask"] is None else options["mask"]

    def wider(t, fill):
        return torch.cat([t, torch.full((rows, 2), fill, dtype=t.dtype)], dim=1)

    padded = [wider(x[0], math.nan), wider(x[1], math.nan), wider(x[2], True), wider(x[3], True)]
    more = {k: wider(v, math.nan) if isinstance(v, torch.Tensor) else v for k, v in (options | {"mask": None}).items()}
    found, expected = FAST[name](padded, more | {"mask": wider(mask, False)}), FAST[name](x, options)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for wide, narrow in pairs:
        torch.testing.assert_close(wide[:, :columns], narrow)
        assert torch.equal(wide[:, columns:], torch.zeros(rows, 2, dtype=wide.dtype))


@pytest.mark.parametrize("name", FAST)
def test_gradients_agree_with_finite_differences(name):
    torch.manual_seed(1)
    reward, value, log_ratio = (torch.randn(2, n, dtype=torch.float64) for n in (4, 5, 4))
    gamma, lam = torch.rand(2, 2, 4, dtype=torch.float64)
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    terminated = torch.tensor([[False, False, False, True], [False] * 4])
    truncated = torch.tensor([[False] * 4, [True, False, False, False]])
    rest = {"n": 2, "mask": mask, "value_next": None, "clip_rho": 1.3, "clip_c": 1.0, "clip_pg_rho": None}

    def function(r, v, w, g, k):
        return FAST[name]([r, v, terminated, truncated], rest | {"log_ratio": w, "gamma": g, "lam": k})

    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in (reward, value, log_ratio, gamma, lam)])


@pytest.mark.parametrize("name", FAST)
def test_masked_garbage_has_no_gradient(name):
    mask = torch.tensor([[True, False, True, False]])
    no = torch.zeros_like(mask)
    reward, log_ratio = (torch.tensor([[1.0, math.nan, 0.5, math.inf]], requires_grad=True) for _ in range(2))
    value = torch.tensor([[1.0, math.nan, 2.0, 3.0, math.inf]], requires_grad=True)
    options = {"gamma": 0.9, "lam": 0.8, "n": 2, "mask": mask, "value_next": None, "log_ratio": log_ratio}
    found = FAST[name]([reward, value, no, no], options)
    total = sum(t.sum() for t in (found if isinstance(found, tuple) else (found,)))
    total.backward()
    assert total.isfinite()
    for tensor in (reward, value, log_ratio):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@settings(max_examples=20)
@given(data=st.data())
def test_lambda_returns_are_advantages_plus_values(data):
    """As long as the value after a decision is that of the next: where `value_next` disagrees with `value`, the two differ."""
    x, options = drawn(data.draw)
    value = torch.randn(len(x[0]), x[0].shape[1] + 1, dtype=torch.float64)
    x, options = [x[0], value, *x[2:]], options | {"value_next": None}
    torch.testing.assert_close(FAST["lambda_returns"](x, options), FAST["gae"](x, options)[1])


@settings(max_examples=20)
@given(data=st.data())
def test_rows_know_nothing_of_each_other(data):
    x, options = drawn(data.draw)
    order = torch.randperm(len(x[0]))
    moved = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    for name in FAST:
        found, expected = FAST[name]([t[order] for t in x], moved), FAST[name](x, options)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for one, two in pairs:
            torch.testing.assert_close(one, two[order])


@pytest.mark.parametrize("name", ["td_errors", "lambda_returns", "discounted_returns", "n_step_returns", "vtrace"])
@pytest.mark.parametrize("argument", ["value", "terminated", "truncated", "gamma", "lam", "mask", "value_next", "log_ratio"])
def test_a_wrong_shape_names_function_and_argument(name, argument):
    if (name == "td_errors" and argument == "lam") or (name != "vtrace" and argument == "log_ratio"):
        return
    wrong = torch.zeros(2, 9)
    x = [R, VALUE, NEVER, NEVER]
    options = {"gamma": 0.9, "lam": 0.8, "n": 2, "mask": None, "value_next": None, "log_ratio": R}
    if argument in options:
        options[argument] = wrong
    else:
        x[["reward", "value", "terminated", "truncated"].index(argument)] = wrong
    if name == "discounted_returns" and argument == "lam":
        return
    with pytest.raises(ShapeError, match=rf"{name}\({argument}\)"):
        FAST[name](x, options)


@pytest.mark.parametrize("n", [0, -1])
def test_a_look_ahead_of_no_decision_is_refused(n):
    with pytest.raises(ConfigError, match=rf"n_step_returns\(n\): expected at least 1, found {n}"):
        n_step_returns(R, VALUE, NEVER, NEVER, gamma=0.9, n=n)
    with pytest.raises(ConfigError, match="n: expected at least 1"):
        NStep(n=n)


@pytest.mark.parametrize("estimator", [DiscountedReturns(), DiscountedReturns(gamma=0.9, normalize_advantages=False)])
def test_contract_of_returns(estimator):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor).run()


@pytest.mark.parametrize("estimator", [NStep(), NStep(n=1, gamma=1.0), NStep(n=3, lam=0.5, normalize_advantages=True)])
def test_contract_of_n_step(estimator):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor).run()


@pytest.mark.parametrize(
    "make", [lambda: DiscountedReturns(gamma=1.5), lambda: NStep(gamma=-0.5), lambda: NStep(lam=2.0), lambda: NStep(gamma=2.0)]
)
def test_fields_out_of_range_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_returns_by_name():
    inputs = {"reward": R, "terminated": NEVER, "truncated": NEVER}
    advantage, target = DiscountedReturns(gamma=0.5, normalize_advantages=False).of(CreditInputs(**inputs))
    torch.testing.assert_close(advantage, discounted_returns(R, NEVER, NEVER, gamma=0.5))
    assert target is None
    _, target = DiscountedReturns(gamma=0.5).of(CreditInputs(**inputs, value=VALUE))
    torch.testing.assert_close(target, discounted_returns(R, NEVER, NEVER, gamma=0.5, value=VALUE))
    white, target = DiscountedReturns(gamma=0.5).normalized(CreditInputs(**inputs, value=V, value_next=V))
    torch.testing.assert_close(target, discounted_returns(R, NEVER, NEVER, gamma=0.5, value=V, value_next=V))
    torch.testing.assert_close(white, whiten(target, ~NEVER))


def test_n_step_by_name():
    value = torch.nan_to_num(VALUE)
    inputs = {"reward": R, "terminated": NEVER, "truncated": NEVER, "mask": torch.tensor([[True, True, True, True, False]] * 2)}
    expected = n_step_returns(R, value, NEVER, NEVER, gamma=0.9, n=2, lam=0.7, mask=inputs["mask"])
    advantage, target = NStep(gamma=0.9, n=2, lam=0.7).of(CreditInputs(**inputs, value=value))
    torch.testing.assert_close(target, expected)
    torch.testing.assert_close(advantage, torch.where(inputs["mask"], expected - value[:, :5], 0.0))
    _, target = NStep(gamma=0.9, n=2, lam=0.7).of(CreditInputs(**inputs, value=V, value_next=R))
    torch.testing.assert_close(
        target, n_step_returns(R, V, NEVER, NEVER, gamma=0.9, n=2, lam=0.7, mask=inputs["mask"], value_next=R)
    )
    white, _ = NStep(gamma=0.9, n=2, lam=0.7, normalize_advantages=True).normalized(CreditInputs(**inputs, value=value))
    torch.testing.assert_close(white, whiten(advantage, inputs["mask"]))

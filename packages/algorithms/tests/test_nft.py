import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, expect_same

from rlinf.algorithms.losses.flow import advantage_to_unit, nft, time_weight
from rlinf.core.capabilities import FlowRegression
from rlinf.core.data import Batch, Credit, Trajectory
from rlinf.core.declarations import needs_of
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means
from rlinf.core.registry import LOSSES

ONE = torch.ones(1, 1, dtype=torch.bool)
NAMES = ("prediction", "prediction_old", "target", "optimality", "mask")


def inputs(seed, rows=3, horizon=2, chunk=(2, 3)):
    g = torch.Generator().manual_seed(seed)
    flows = torch.randn(3, rows, horizon, *chunk, generator=g, dtype=torch.float64)
    optimality, weight, mask = torch.rand(3, rows, horizon, generator=g, dtype=torch.float64)
    return dict(zip(NAMES, (*flows, optimality, mask < 0.7), strict=True)), weight


def at(new, old, target, r, **options):
    """One decision of one number."""
    new, old, target = (torch.tensor([[x]], dtype=torch.float64) for x in (new, old, target))
    new.requires_grad_()
    output = nft(new, old, target, torch.tensor([[r]], dtype=torch.float64), ONE, **options)
    output.total.backward()
    return output, new.grad.item()


@pytest.mark.parametrize(
    ("r", "options", "loss", "gradient"),
    [
        # v = 2, v_old = 1, v* = 5: v₊ = 2 and v₋ = 0, E₊ = 9 and E₋ = 25
        (1.0, {}, 9.0, -6.0),
        (0.0, {}, 25.0, 10.0),
        (0.25, {}, 0.25 * 9 + 0.75 * 25, 0.25 * -6 + 0.75 * 10),
        # β = ½: v₊ = 1.5 and v₋ = 0.5
        (1.0, {"beta": 0.5}, 12.25, -3.5),
        (0.0, {"beta": 0.5}, 20.25, 4.5),
        (1.0, {"weight": torch.tensor([[3.0]])}, 27.0, -18.0),
        # divided by |v± − v*|, 3 and 5, as constants
        (0.25, {"adaptive": True}, 0.25 * 3 + 0.75 * 5, 0.25 * -2 + 0.75 * 2),
        (0.5, {"form": "dpo"}, math.log(2), 0.0),
        (1.0, {"form": "dpo"}, math.log1p(math.exp(-8.0)), -8 / (1 + math.exp(8.0))),
        (0.75, {"form": "dpo", "dpo_beta": 0.25}, math.log1p(math.exp(-1.0)), -1 / (1 + math.exp(1.0))),
    ],
)
def test_by_hand(r, options, loss, gradient):
    output, found = at(2.0, 1.0, 5.0, r, **options)
    assert (output.total.item(), found) == (pytest.approx(loss), pytest.approx(gradient))
    assert output.metrics["policy_loss"].mean == output.total
    assert output.metrics["old_deviation"].mean == 1.0
    if not options:
        assert means(output.metrics) == pytest.approx(
            {"policy_loss": loss, "energy_positive": 9.0, "energy_negative": 25.0, "old_deviation": 1.0}
        )


def test_adaptive_weights_do_not_divide_by_zero():
    assert at(1.0, 1.0, 1.0, 0.5, adaptive=True)[1] == 0.0
    # an error of 1e-6 is divided by 1e-5
    assert at(1.0 + 1e-6, 1.0, 1.0, 1.0, adaptive=True)[0].total.item() == pytest.approx(1e-7)


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_at_the_old_flow_the_gradient_is_that_of_weighted_flow_matching(beta):
    x, weight = inputs(1)
    leaf = x["prediction_old"].clone().requires_grad_()
    nft(**(x | {"prediction": leaf}), beta=beta, weight=weight).total.backward()
    share = torch.where(x["mask"], 2 * beta * (2 * x["optimality"] - 1) * weight, 0.0)[..., None, None]
    torch.testing.assert_close(leaf.grad, share * (x["prediction_old"] - x["target"]) / 6)


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(), (2,), (2, 3), (1, 2, 2)]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from(["mse", "dpo"]),
    st.sampled_from([0.5, 3.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(AGGREGATIONS),
)
def test_what_the_reference_says(seed, rows, horizon, chunk, beta, form, dpo_beta, weighted, adaptive, aggregation):
    x, weight = inputs(seed, rows, horizon, chunk)
    options = {"beta": beta, "form": form, "dpo_beta": dpo_beta, "adaptive": adaptive, "aggregation": aggregation}
    found = nft(**x, **options, weight=weight if weighted else None)
    lists = {name: tensor.tolist() for name, tensor in x.items()}
    expect_same(found, reference.nft(**lists, **options, weight=weight.tolist() if weighted else None))


@pytest.mark.parametrize("form", ["mse", "dpo"])
def test_gradients_against_finite_differences(form):
    x, weight = inputs(2)
    prediction = x.pop("prediction").requires_grad_()
    assert torch.autograd.gradcheck(lambda v: nft(v, **x, form=form, weight=weight, beta=0.7).total, prediction)


@pytest.mark.parametrize("form", ["mse", "dpo"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_masked_garbage_changes_nothing(form, adaptive):
    x, weight = inputs(3)
    clean = nft(**x, form=form, weight=weight, adaptive=adaptive)

    def dirtied(tensor):
        mask = x["mask"].reshape(*x["mask"].shape, *[1] * (tensor.dim() - 2))
        return tensor if tensor.dtype == torch.bool else torch.where(mask, tensor, math.nan)

    dirty = {name: dirtied(tensor) for name, tensor in x.items()}
    dirty["prediction"].requires_grad_()
    found = nft(**dirty, form=form, weight=torch.where(x["mask"], weight, math.inf), adaptive=adaptive)
    found.total.backward()
    assert found.total == clean.total
    assert found.metrics == clean.metrics
    assert (dirty["prediction"].grad[~x["mask"]] == 0).all()
    assert dirty["prediction"].grad.isfinite().all()


@pytest.mark.parametrize("form", ["mse", "dpo"])
def test_the_split_into_micro_batches_and_the_order_of_rows_change_nothing(form):
    x, _ = inputs(4, rows=5)
    for aggregation in AGGREGATIONS:
        whole = nft(**x, form=form, aggregation=aggregation)
        order = [[3, 0], [4], [1, 2]]
        parts = [nft(**{k: v[rows] for k, v in x.items()}, form=form, aggregation=aggregation) for rows in order]
        torch.testing.assert_close(sum(part.total for part in parts), whole.total)
        assert sum(part.weight for part in parts) == whole.weight


def test_half_precision_is_computed_in_float32():
    x, _ = inputs(5)
    half = {k: v if v.dtype == torch.bool else v.bfloat16() for k, v in x.items()}
    full = {k: v if v.dtype == torch.bool else v.float() for k, v in half.items()}
    assert nft(**half).total.dtype == torch.float32
    assert nft(**half).total == nft(**full).total


def test_only_the_prediction_has_a_gradient():
    x, weight = inputs(6)
    leaves = {k: v for k, v in x.items() if v.dtype != torch.bool} | {"weight": weight}
    for leaf in leaves.values():
        leaf.requires_grad_()
    nft(**x, weight=weight).total.backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == ["prediction"]


def test_advantage_to_unit_by_hand():
    found = advantage_to_unit(torch.tensor([-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0]), clip=5.0)
    assert found.tolist() == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert found.tolist() == reference.advantage_to_unit([-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0], clip=5.0)
    with pytest.raises(ConfigError, match=r"clip: expected more than 0, found 0"):
        advantage_to_unit(found, clip=0.0)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("constant", [1, 1, 1]), ("t", [1, 0.5, 0.25]), ("1-t", [0, 0.5, 0.75]), ("inv_t2", [1, 4, 16]), ("inv_t3", [1, 8, 64])],
)
def test_time_weight_by_hand(weighting, expected):
    assert time_weight(torch.tensor([1.0, 0.5, 0.25]), weighting=weighting).tolist() == expected
    assert reference.time_weight([1.0, 0.5, 0.25], weighting=weighting) == expected


def test_unknown_names_and_wrong_ranges_are_refused():
    x, weight = inputs(7)
    with pytest.raises(ConfigError, match="weighting: expected one of constant, t, 1-t, inv_t2, inv_t3, found 't2'"):
        time_weight(weight, weighting="t2")
    with pytest.raises(ConfigError, match="form: expected one of mse, dpo, found 'msee'"):
        nft(**x, form="msee")
    for name in ("beta", "dpo_beta"):
        with pytest.raises(ConfigError, match=rf"{name}: expected more than 0"):
            nft(**x, **{name: 0.0})


@pytest.mark.parametrize("name", [*NAMES[1:], "weight"])
def test_a_wrong_shape_is_named(name):
    x, weight = inputs(8)
    x["weight"] = weight
    x[name] = x[name][:1]
    with pytest.raises(ShapeError, match=rf"nft\({name}\): expected shape"):
        nft(**x)


def test_a_wrong_rank_is_named():
    with pytest.raises(ShapeError, match=r"nft\(prediction\): expected \[B, T, …\], found \(2,\)"):
        nft(*(torch.zeros(2) for _ in NAMES))


class Flow:
    """A policy whose flow predicts what its context says, times a weight."""

    def __init__(self):
        self.weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def flow_regression(self, context):
        prediction = self.weight * context["velocity"]
        return FlowRegression(prediction=prediction, previous=context["velocity"], target=context["target"], time=context["time"])


def recorded(rows=3, horizon=2, draws=4):
    g = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(rows, horizon, *shape, generator=g, dtype=torch.float64)

    context = {
        "velocity": normal(draws, 2, 3),
        "target": normal(draws, 2, 3),
        "time": torch.rand(rows, horizon, draws, generator=g),
    }
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    zero = torch.zeros(rows, horizon, dtype=torch.float64)
    trajectory = Trajectory(
        context=context,
        action=normal(2, 3),
        logprob=zero,
        reward=zero,
        terminated=~mask,
        truncated=mask & False,
        mask=mask,
        version=zero.long(),
        group=torch.arange(rows),
        task=torch.zeros(rows, dtype=torch.int64),
    )
    return Batch(trajectory=trajectory, credit=Credit(advantage=3.0 * normal(), target=None))


@pytest.mark.parametrize(
    "options", [{}, {"form": "dpo", "dpo_beta": 2.0}, {"beta": 0.5, "weighting": "t", "adaptive": True, "adv_clip": 2.0}]
)
def test_the_loss_by_name_averages_the_draws_of_each_decision(options):
    batch, policy = recorded(), Flow()
    found = LOSSES.build("nft", options, place="algorithm").of_policy(policy, batch)
    t, one = batch.trajectory, {"dpo_beta": 1.0, "adaptive": False, "form": "mse", "beta": 1.0} | options
    clip, weighting = one.pop("adv_clip", 1.0), one.pop("weighting", "constant")
    total = 0.0
    for draw in range(4):
        velocity, target, time = (t.context[name][:, :, draw] for name in ("velocity", "target", "time"))
        r, w = advantage_to_unit(batch.credit.advantage, clip=clip), time_weight(time, weighting=weighting)
        total += nft(velocity, velocity, target, r, t.mask, weight=w, **one).total.item() / 4
    assert found.total.item() == pytest.approx(total, rel=1e-9)
    assert found.weight.item() == 5, "decisions, not draws"
    found.total.backward()
    assert policy.weight.grad.abs() > 1e-3


def test_the_loss_by_name_asks_for_a_flow():
    assert needs_of(LOSSES.build("nft", {}, place="algorithm")) == {"regression": ""}
    for wrong in ({"beta": 0.0}, {"adv_clip": 0.0}, {"dpo_beta": -1.0}, {"form": "mae"}, {"weighting": "t2"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            LOSSES.build("nft", wrong, place="algorithm")

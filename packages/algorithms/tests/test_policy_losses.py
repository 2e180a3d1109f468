"""What holds for every policy loss, whatever it is: of the functions, and of the losses by name."""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, CASES, Case, case, gradient, row_constant

from rlinf.algorithms.losses.distillation import OPD, opd
from rlinf.algorithms.losses.policy.cispo import CISPO, cispo
from rlinf.algorithms.losses.policy.decoupled import DecoupledActorCritic, DecoupledPPO, decoupled_ppo
from rlinf.algorithms.losses.policy.gmpo import GMPO, gmpo
from rlinf.algorithms.losses.policy.gspo import GSPO, gspo
from rlinf.algorithms.losses.policy.ppo import DAPO, ActorCritic, PPOClip, ppo_clip
from rlinf.algorithms.losses.policy.reinforce import OPMD, Reinforce, opmd, reinforce
from rlinf.algorithms.losses.policy.sapo import SAPO, sapo
from rlinf.algorithms.losses.policy.vespo import VESPO, vespo
from rlinf.algorithms.losses.policy_loss import LossInputs
from rlinf.core import Rescored
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import means, merge
from rlinf.core.testing.loss import LossContract
from rlinf.core.testing.samples import random_batch

CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
FUNCTIONS = {
    "ppo_clip": lambda x, **k: ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, **CLIP, clip_ratio_c=3.0, **k),
    "decoupled_ppo": lambda x, **k: decoupled_ppo(
        x.logprob, x.logprob_old, x.logprob_proximal, x.advantage, x.mask, **CLIP, behave_weight_threshold=1.5, **k
    ),
    "gspo": lambda x, **k: gspo(x.logprob, x.logprob_old, x.advantage, x.mask, **CLIP, **k),
    "gspo_token": lambda x, **k: gspo(x.logprob, x.logprob_old, x.advantage, x.mask, **CLIP, token_level=True, **k),
    "gmpo": lambda x, **k: gmpo(x.logprob, x.logprob_old, x.advantage, x.mask, **k),
    "cispo": lambda x, **k: cispo(x.logprob, x.logprob_old, x.advantage, x.mask, **CLIP, **k),
    "sapo": lambda x, **k: sapo(x.logprob, x.logprob_old, x.advantage, x.mask, **k),
    "sapo_sequence": lambda x, **k: sapo(x.logprob, x.logprob_old, x.advantage, x.mask, sequence_level=True, **k),
    "reinforce": lambda x, **k: reinforce(x.logprob, x.advantage, x.mask, **k),
    "reinforce_ratio": lambda x, **k: reinforce(x.logprob, x.advantage, x.mask, logprob_old=x.logprob_old, **k),
    "opd": lambda x, **k: opd(x.logprob, x.advantage, x.mask, **k),
    "opmd": lambda x, **k: opmd(x.logprob, x.advantage, x.mask, tau=0.0, **k),
    "vespo": lambda x, **k: vespo(x.logprob, x.logprob_old, x.advantage, x.mask, **k),
}
WITHOUT_STOPPED_GRADIENTS = ["ppo_clip", "decoupled_ppo", "gspo", "gmpo", "sapo", "reinforce", "opd", "opmd"]
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def picked(x: Case, rows) -> Case:
    return x.map(lambda tensor: tensor[rows])


@settings(max_examples=15)
@given(x=CASES, aggregation=st.sampled_from(AGGREGATIONS), seed=st.integers(0, 1000))
@every_function
def test_micro_batches_of_rows_in_any_order_add_up(name, x, aggregation, seed):
    loss = FUNCTIONS[name]
    order = torch.randperm(len(x.mask), generator=torch.Generator().manual_seed(seed))
    parts = order.split([1, *[1] * (len(order) > 1), *[len(order) - 2] * (len(order) > 2)])
    whole = loss(x, aggregation=aggregation)
    outputs = [loss(picked(x, rows), aggregation=aggregation) for rows in parts]
    torch.testing.assert_close(sum(o.total for o in outputs), whole.total)
    assert sum(o.weight for o in outputs) == whole.weight
    assert means(merge(o.metrics for o in outputs)) == pytest.approx(means(whole.metrics), nan_ok=True)
    expected = gradient(lambda c: loss(c, aggregation=aggregation), x)
    for rows in parts:
        found = gradient(lambda c: loss(c, aggregation=aggregation), picked(x, rows))
        torch.testing.assert_close(found, expected[rows], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@every_function
def test_masked_garbage_and_padding_change_nothing(name, garbage):
    loss = FUNCTIONS[name]
    for chunk in ((), (2, 3)):
        x = case(7, chunk=chunk)
        assert x.mask.any()
        assert not x.mask.all()

        def spoiled(tensor, mask=x.mask):
            if tensor.dtype == torch.bool:
                return torch.cat([tensor, tensor[:, :1] & False], 1)
            known = torch.where(mask.reshape(*mask.shape, *[1] * (tensor.dim() - 2)), tensor, garbage)
            return torch.cat([known, torch.full_like(known[:, :1], garbage)], 1)

        clean, dirty = loss(x), loss(x.map(spoiled))
        torch.testing.assert_close(dirty.total, clean.total)
        assert dirty.weight == clean.weight
        assert means(dirty.metrics) == pytest.approx(means(clean.metrics))
        found = gradient(loss, x.map(spoiled))
        torch.testing.assert_close(found[:, :-1], gradient(loss, x))
        assert (found[:, :-1][~x.mask] == 0).all()
        assert (found[:, -1] == 0).all()


@every_function
def test_a_batch_without_decisions_weighs_nothing(name):
    x = replace(case(3), mask=case(3).mask & False)
    for aggregation in AGGREGATIONS:
        output = FUNCTIONS[name](x, aggregation=aggregation)
        assert (output.total.item(), output.weight.item()) == (0.0, 0.0)
        assert (gradient(FUNCTIONS[name], x) == 0).all()
        assert all(math.isnan(mean) for mean in means(output.metrics).values())


@every_function
def test_no_input_is_changed_and_the_advantage_has_no_gradient(name):
    x = case(5)
    before = x.map(torch.clone)
    leaf = replace(x, advantage=x.advantage.clone().requires_grad_(), logprob=x.logprob.clone().requires_grad_())
    FUNCTIONS[name](leaf).total.backward()
    assert leaf.advantage.grad is None
    for field in ("logprob", "logprob_old", "logprob_proximal", "advantage", "mask"):
        assert getattr(leaf, field).equal(getattr(before, field))


@pytest.mark.parametrize("name", WITHOUT_STOPPED_GRADIENTS)
def test_gradients_against_finite_differences(name):
    for chunk in ((), (2,)):
        x = case(9, rows=3, horizon=2, chunk=chunk)

        def total(logprob, x=x):
            return FUNCTIONS[name](replace(x, logprob=logprob)).total

        assert torch.autograd.gradcheck(total, x.logprob.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_function
def test_half_precision_is_computed_in_float32(name, dtype):
    half = case(5, chunk=(2,)).map(lambda t: t if t.dtype == torch.bool else t.to(dtype))
    full = half.map(lambda t: t if t.dtype == torch.bool else t.float())
    found, expected = FUNCTIONS[name](half), FUNCTIONS[name](full)
    assert found.total.dtype == torch.float32
    assert found.total == expected.total
    assert found.metrics == expected.metrics
    assert gradient(FUNCTIONS[name], half).isfinite().all()


@every_function
def test_single_precision_agrees_with_double(name):
    x = case(6, chunk=(2,))
    single = x.map(lambda t: t if t.dtype == torch.bool else t.float())
    assert FUNCTIONS[name](x).total.dtype == torch.float64
    assert FUNCTIONS[name](single).total.item() == pytest.approx(FUNCTIONS[name](x).total.item(), rel=1e-4)


@every_function
def test_a_mask_of_numbers_does_as_well(name):
    x = case(6)
    assert FUNCTIONS[name](replace(x, mask=x.mask.float())).total == FUNCTIONS[name](x).total


@pytest.mark.parametrize("chunk", [(2,), (2, 3)])
@every_function
def test_neither_k_nor_a_enters_the_size(name, chunk):
    """The same number in every element gives the loss, the weight and the metrics of one element."""
    x = case(4)

    def fine(tensor):
        return tensor.reshape(*tensor.shape, *[1] * len(chunk)).expand(*tensor.shape, *chunk)

    wide = replace(x, logprob=fine(x.logprob), logprob_old=fine(x.logprob_old), logprob_proximal=fine(x.logprob_proximal))
    found, expected = FUNCTIONS[name](wide), FUNCTIONS[name](x)
    torch.testing.assert_close(found.total, expected.total)
    assert found.weight == expected.weight
    assert means(found.metrics) == pytest.approx(means(expected.metrics))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("chunk", [(), (2,)])
@every_function
def test_on_policy_the_gradient_is_that_of_the_policy_gradient(name, chunk, aggregation):
    """At ratio 1 no bound is active: d total / d logprob = −factor · Â, shared among the elements of a decision."""
    x = row_constant(case(8, rows=6, chunk=chunk, scale=0.0))
    factor, _ = aggregation.factors(x.mask, torch.float64)
    found = gradient(lambda c: FUNCTIONS[name](c, aggregation=aggregation), x)
    share = -factor * x.advantage / math.prod(chunk)
    torch.testing.assert_close(found, share.reshape(*share.shape, *[1] * len(chunk)).expand_as(found))


@dataclass(frozen=True)
class WithProximal:
    """A loss that needs more than the contract's cases have: the proximal policy, and the version of the weights."""

    loss: Any

    def __call__(self, batch, evaluation):
        t = batch.trajectory
        proximal = t.logprob + 0.2 * torch.sin(5.0 * t.logprob)
        return self.loss(replace(batch, trajectory=replace(t, proximal=proximal)), replace(evaluation, version=3))


LOSSES_BY_NAME = [
    PPOClip(),
    PPOClip(clip_ratio_c=3.0, loss_agg_func="seq-mean-token-mean"),
    PPOClip(loss_agg_func="constant-length", loss_agg_length=4),
    DAPO(),
    ActorCritic(),
    ActorCritic(value_clip=0.2, huber_delta=1.0, entropy_bonus=0.01),
    GSPO(0.2, 0.3),
    GSPO(0.2, 0.3, token_level=True, loss_agg_func="token-mean"),
    GMPO(),
    CISPO(0.2, 0.3),
    SAPO(),
    SAPO(sequence_level=True, opsm_delta=0.01),
    Reinforce(),
    Reinforce(importance_ratio=True, loss_agg_func="seq-mean-token-sum"),
    OPD(),
    OPMD(),
    VESPO(),
    WithProximal(DecoupledPPO(behave_weight_threshold=1.1)),
    WithProximal(DecoupledPPO(proximal="interpolated")),
    WithProximal(DecoupledActorCritic(behave_weight_threshold=1.1, behave_weight_cap="truncate", value_clip=0.2)),
]


@pytest.mark.parametrize("chunk", [(), (2,), (2, 3)])
@pytest.mark.parametrize("loss", LOSSES_BY_NAME, ids=str)
def test_contract(loss, chunk):
    LossContract(loss=loss, as_array=torch.as_tensor, chunk=chunk).run()


def test_the_loss_of_dapo_is_ppo_with_its_bounds():
    batch = random_batch(5, 4, as_array=torch.as_tensor)
    logprob = batch.trajectory.logprob + 0.5 * torch.sin(7.0 * batch.trajectory.logprob)
    found = DAPO()(batch, Rescored(logprob=logprob))
    assert found == PPOClip(0.2, 0.28)(batch, Rescored(logprob=logprob))
    assert found.metrics["clip_fraction"].mean > 0.0


SHAPED = product(
    ["ppo_clip", "decoupled_ppo", "gspo", "gmpo", "cispo", "sapo", "reinforce_ratio"], ["logprob_old", "advantage", "mask"]
)


@pytest.mark.parametrize(("name", "wrong"), [*SHAPED, ("decoupled_ppo", "logprob_proximal")])
def test_a_wrong_shape_is_named(name, wrong):
    x = case(0, rows=2)
    with pytest.raises(ShapeError, match=rf"{name.removesuffix('_ratio')}\({wrong}\): expected shape \(2, 3\), found \(1, 3\)"):
        FUNCTIONS[name](replace(x, **{wrong: getattr(x, wrong)[:1]}))


@pytest.mark.parametrize("missing", ["logprob", "logprob_old", "advantage"])
@pytest.mark.parametrize("loss", [PPOClip(), DAPO(), GSPO(), GMPO(), CISPO(), SAPO(), DecoupledPPO()], ids=str)
def test_what_a_loss_needs_is_named(loss, missing):
    inputs = {name: torch.zeros(1, 1) for name in ("logprob", "logprob_old", "logprob_proximal", "advantage")}
    with pytest.raises(ShapeError, match=rf"{type(loss).__name__}\({missing}\): expected a tensor, found None"):
        loss.of(LossInputs(mask=torch.ones(1, 1) > 0, **(inputs | {missing: None})))


@pytest.mark.parametrize("missing", ["value", "target", "value_old"])
@pytest.mark.parametrize("loss", [ActorCritic(), DecoupledActorCritic()], ids=str)
def test_what_a_critic_needs_is_named(loss, missing):
    names = ("logprob", "logprob_old", "logprob_proximal", "advantage", "value", "target", "value_old")
    inputs = {name: torch.zeros(1, 1) for name in names} | {missing: None}
    with pytest.raises(ShapeError, match=rf"{type(loss).__name__}\({missing}\): expected a tensor, found None"):
        loss.of(LossInputs(mask=torch.ones(1, 1) > 0, **inputs))


def test_the_entropy_that_a_bonus_needs_is_named():
    batch = random_batch(2, 2, as_array=torch.as_tensor)
    with pytest.raises(ShapeError, match=r"ActorCritic\(entropy\): expected a tensor, found None"):
        ActorCritic(entropy_bonus=0.1)(batch, Rescored(logprob=batch.trajectory.logprob, value=batch.credit.target))

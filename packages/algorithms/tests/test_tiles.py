"""Losses of many rows, computed some rows at a time."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from held_bytes import HeldBytes
from loss_cases import AGGREGATIONS, case, gradient

from rlinf.algorithms import tiling
from rlinf.algorithms.advantages.returns import gae
from rlinf.algorithms.losses.correction import CorrectionConfig
from rlinf.algorithms.losses.kl import kl_loss
from rlinf.algorithms.losses.policy.cispo import cispo
from rlinf.algorithms.losses.policy.covariance import clip_cov, kl_cov
from rlinf.algorithms.losses.policy.gmpo import gmpo
from rlinf.algorithms.losses.policy.gspo import gspo
from rlinf.algorithms.losses.policy.ppo import ActorCritic, PPOClip, ppo_clip
from rlinf.algorithms.losses.policy.reinforce import reinforce
from rlinf.algorithms.losses.policy.sapo import sapo
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.terms import Terms
from rlinf.algorithms.losses.value import clipped_value_loss
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import means

BOUNDS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}


def kl(logprob, old, advantage, mask, aggregation):
    return kl_loss(logprob, old, mask, kind="k2", aggregation=aggregation)


def value(logprob, old, advantage, mask, aggregation):
    return clipped_value_loss(logprob, old, advantage, mask, value_clip=0.1, aggregation=aggregation)


def on_policy(logprob, old, advantage, mask, aggregation):
    return reinforce(logprob, advantage, mask, aggregation=aggregation)


LOSSES = {
    "ppo": partial(ppo_clip, **BOUNDS, clip_ratio_c=1.1),
    "gspo": partial(gspo, **BOUNDS),
    "gspo-token": partial(gspo, **BOUNDS, token_level=True),
    "gmpo": gmpo,
    "cispo": partial(cispo, **BOUNDS),
    "sapo": sapo,
    "kl-cov": partial(kl_cov, share=0.3),
    "clip-cov": partial(clip_cov, **BOUNDS, share=1.0, low=0.1, high=2.0),
    "reinforce": on_policy,
    "kl": kl,
    "value": value,
}


@pytest.fixture
def shrink(monkeypatch):
    """A function that makes tiles small."""

    def shrink(numbers):
        monkeypatch.setattr(tiling, "CPU_TILE", numbers)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    return shrink


@pytest.fixture(params=[1, 7], ids=["one row", "two rows"])
def small(request, shrink):
    shrink(request.param)


def by_hand(loss, x, aggregation):
    return loss(x.logprob, x.logprob_old, x.advantage, x.mask, aggregation=aggregation)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=str)
def test_a_loss_in_tiles_is_the_loss(name, aggregation, shrink):
    x, loss = case(5, rows=5, horizon=3), LOSSES[name]
    x = replace(x, advantage=torch.where(x.mask, x.advantage, torch.nan))
    whole, slope = by_hand(loss, x, aggregation), gradient(lambda c: by_hand(loss, c, aggregation), x)
    shrink(7)
    found = by_hand(loss, x, aggregation)
    torch.testing.assert_close(found.total, whole.total, rtol=1e-12, atol=1e-12)
    assert found.weight == whole.weight
    assert means(found.metrics) == pytest.approx(means(whole.metrics), rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient(lambda c: by_hand(loss, c, aggregation), x), slope, rtol=1e-12, atol=1e-12)
    assert slope.abs().sum() > 0


def test_all_terms_of_a_loss_by_name_are_in_tiles(shrink):
    x = case(6, rows=5, horizon=3)
    options = {"kl_beta": 0.1, "entropy_bonus": 0.2, "correction": CorrectionConfig(level="sequence", veto=0.1), "value_clip": 0.1}

    def found():
        leaves = {
            name: y.clone().requires_grad_()
            for name, y in (("logprob", x.logprob), ("value", x.advantage), ("entropy", x.logprob_old))
        }
        given = LossInputs(
            mask=x.mask, advantage=x.advantage, logprob_old=x.logprob_old, logprob_proximal=x.logprob_proximal,
            logprob_ref=x.logprob_old, target=x.logprob, value_old=x.logprob_old, **leaves,
        )  # fmt: skip
        output = ActorCritic(**options).of(given)
        (2.0 * output.total).backward()
        return output, [leaf.grad for leaf in leaves.values()]

    whole, slopes = found()
    shrink(7)
    parts, same = found()
    torch.testing.assert_close(parts.total, whole.total)
    assert means(parts.metrics) == pytest.approx(means(whole.metrics), nan_ok=True)
    torch.testing.assert_close(same, slopes)


def test_a_graph_that_was_retained_gives_the_same_gradient_again(small):
    x = case(7, rows=5)
    leaf = x.logprob.clone().requires_grad_()
    total = by_hand(LOSSES["gspo"], replace(x, logprob=leaf), AGGREGATIONS[0]).total
    first = torch.autograd.grad(3.0 * total, leaf, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(3.0 * total, leaf)[0], first)
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_half_precision_and_no_gradient(small):
    x = case(8, rows=5).map(lambda y: y if y.dtype == torch.bool else y.bfloat16())
    leaf = x.logprob.clone().requires_grad_()
    output = by_hand(LOSSES["ppo"], replace(x, logprob=leaf), AGGREGATIONS[0])
    output.total.backward()
    assert (output.total.dtype, leaf.grad.dtype) == (torch.float32, torch.bfloat16)
    with torch.no_grad():
        assert by_hand(LOSSES["ppo"], replace(x, logprob=leaf), AGGREGATIONS[0]).total == output.total
    assert not by_hand(LOSSES["ppo"], x, AGGREGATIONS[0]).total.requires_grad


def test_shapes_are_named_as_they_were_given(small):
    x = torch.zeros(5, 3)
    with pytest.raises(ShapeError, match=r"ppo_clip\(advantage\): expected shape \(5, 3\), found \(5, 2\)"):
        ppo_clip(x, x, x[:, :2], x == 0, **BOUNDS)
    with pytest.raises(ShapeError, match=r"ppo_clip\(advantage\): expected shape \(5, 3\), found \(4, 3\)"):
        ppo_clip(x, x, x[:4], x == 0, **BOUNDS)


class Centred(PolicyLoss):
    """A loss whose terms depend on all rows."""

    def policy_terms(self, x: LossInputs) -> Terms:
        return Terms((x.logprob - x.logprob.mean()) * x.advantage)


def test_a_loss_that_does_not_say_so_sees_all_rows_at_once(shrink):
    x = case(9, rows=5)
    inputs = LossInputs(mask=torch.ones_like(x.mask), logprob=x.logprob, advantage=x.advantage)
    whole = Centred().of(inputs).total
    shrink(7)
    assert Centred().of(inputs).total == whole
    assert PPOClip.by_rows


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gamma", [0.9, torch.linspace(0.1, 1.0, 30, dtype=torch.float64).reshape(5, 6)], ids=["number", "tensor"])
def test_gae_in_tiles_is_gae(masked, gamma, shrink):
    """With and without a gradient, also where only some tiles have gaps in their mask."""
    g = torch.Generator().manual_seed(1)
    reward, value = torch.randn(5, 6, generator=g, dtype=torch.float64), torch.randn(5, 7, generator=g, dtype=torch.float64)
    ended, cut = torch.rand(5, 6, generator=g) < 0.2, torch.rand(5, 6, generator=g) < 0.2
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[0, 4:], mask[1, :2], mask[3, 2:4] = False, False, False
    options = {"gamma": gamma, "lam": 0.8, "mask": mask if masked else None}
    whole = gae(reward, value, ended, cut, **options)
    shrink(7)
    for found in (gae(reward, value, ended, cut, **options), gae(reward.requires_grad_(), value, ended, cut, **options)):
        torch.testing.assert_close(found, whole)
    with pytest.raises(ShapeError, match=r"gae\(truncated\): expected shape \(5, 6\), found \(5, 5\)"):
        gae(reward.detach(), value, ended, cut[:, :5], **options)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"kl-cov", "clip-cov"}))
def test_a_large_loss_holds_little_more_than_its_gradient(name, shrink):
    """Less than three copies of the log-probabilities and some tiles; everything at once takes up to twenty."""
    shrink(2**9)
    logprob = torch.randn(64, 128, requires_grad=True)
    old, one, mask = logprob.detach() + 0.1, torch.ones(64, 128), torch.ones(64, 128, dtype=torch.bool)
    with HeldBytes() as held:
        LOSSES[name](logprob, old, one, mask, aggregation=AGGREGATIONS[2]).total.backward()
    assert logprob.grad.isfinite().all()
    assert held.most < 3 * 4 * logprob.numel() + 2**15

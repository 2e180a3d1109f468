"""What all policy losses have in common: aggregation, granularity, entropy, divergence, correction."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.correction import CorrectionConfig
from rlinf.algorithms.losses.entropy import entropy_loss
from rlinf.algorithms.losses.kl import kl_loss
from rlinf.algorithms.losses.policy.ppo import ActorCritic, PPOClip, ppo_clip
from rlinf.algorithms.losses.policy_loss import INPUT_NAMES, LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import at_granularity
from rlinf.algorithms.losses.terms import Aggregation, Terms, aggregate
from rlinf.algorithms.losses.value import clipped_value_loss
from rlinf.core import Rescored
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import merge
from rlinf.core.registry import LOSSES
from rlinf.core.testing.loss import LossContract
from rlinf.core.testing.samples import random_batch

CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


@dataclass(frozen=True, slots=True)
class Plain(PolicyLoss):
    """−Â · (log π − log π_old), which shows what it was given."""

    def policy_terms(self, x):
        loss = torch.where(x.mask, -x.advantage * (x.logprob - x.logprob_old), 0.0)
        return Terms(loss, {"policy_loss": loss.detach()})


def inputs(rows=4, horizon=3, chunk=(), seed=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(rows, horizon, *shape, generator=g, dtype=torch.float64)

    old = normal(*chunk)
    proximal = old + 0.3 * normal(*chunk)
    return LossInputs(
        mask=torch.rand(rows, horizon, generator=g) < 0.7,
        logprob=proximal + 0.3 * normal(*chunk),
        logprob_old=old,
        logprob_proximal=proximal,
        logprob_ref=old.flatten(2).sum(2) if chunk else old + 0.3 * normal(),
        advantage=normal(),
        target=normal(),
        value=normal(),
        value_old=normal(),
        entropy=normal(*chunk).abs(),
    )


def test_without_options_it_is_the_policy_term_alone():
    x = replace(inputs(), logprob_ref=None, entropy=None)
    found = Plain().of(x)
    expected = aggregate(-x.advantage * (x.logprob - x.logprob_old), x.mask)
    torch.testing.assert_close(found.total, expected.total)
    assert found.weight == expected.weight == x.mask.sum()
    assert list(found.metrics) == ["policy_loss"]


@pytest.mark.parametrize(
    "mode", [("token-mean", None), ("seq-mean-token-sum", None), ("seq-mean-token-mean", None), ("constant-length", 7)]
)
def test_every_term_is_aggregated_alike(mode):
    x = inputs()
    found = ActorCritic(
        loss_agg_func=mode[0], loss_agg_length=mode[1], entropy_bonus=0.1, kl_beta=0.3, kl_type="k2", value_loss_coef=0.5
    ).of(x)
    how = Aggregation(*mode)
    actor = ppo_clip(x.logprob, x.logprob_old, x.advantage, x.mask, **CLIP, aggregation=how)
    kl = kl_loss(x.logprob, x.logprob_ref, x.mask, kind="k2", aggregation=how)
    critic = aggregate(0.5 * (x.value - x.target).square(), x.mask, how)
    bonus = aggregate(-x.entropy, x.mask, how)
    torch.testing.assert_close(found.total, actor.total + 0.3 * kl.total + 0.5 * critic.total + 0.1 * bonus.total)
    assert found.weight == actor.weight == kl.weight == bonus.weight


def test_entropy_and_divergence_are_logged_where_they_are_known_and_differentiated_where_they_count():
    x = inputs()
    leaves = x.logprob.clone().requires_grad_(), x.entropy.clone().requires_grad_()
    found = Plain().of(replace(x, logprob=leaves[0], entropy=leaves[1]))
    torch.testing.assert_close(found.total.detach(), Plain().of(replace(x, entropy=None, logprob_ref=None)).total)
    found.total.backward()
    torch.testing.assert_close(leaves[0].grad, torch.where(x.mask, -x.advantage, 0.0))
    assert leaves[1].grad is None
    assert found.metrics["entropy"] == entropy_loss(x.entropy, x.mask).metrics["entropy"]
    assert found.metrics["kl_ref"] == kl_loss(x.logprob, x.logprob_ref, x.mask).metrics["kl_ref"]


def test_the_divergence_by_hand():
    """log π − log π_ref = log 2 everywhere: k1 adds β log 2 for each of three decisions."""
    logprob = torch.zeros(1, 3, requires_grad=True)
    x = LossInputs(
        mask=torch.ones(1, 3, dtype=torch.bool), logprob=logprob, logprob_old=torch.zeros(1, 3), advantage=torch.zeros(1, 3)
    )
    found = Plain(kl_beta=0.5, kl_type="k1").of(replace(x, logprob_ref=torch.full((1, 3), -math.log(2.0))))
    assert found.total.item() == pytest.approx(1.5 * math.log(2.0))
    found.total.backward()
    assert logprob.grad.tolist() == [[0.5, 0.5, 0.5]]
    assert found.metrics["kl_ref"].mean == pytest.approx(math.log(2.0))


@pytest.mark.parametrize(
    ("loss", "without", "message"),
    [
        (
            Plain(kl_beta=0.1),
            "logprob_ref",
            r"Plain\(logprob_ref\): expected a tensor, found None. Score the batch with a reference",
        ),
        (Plain(entropy_bonus=0.1), "entropy", r"Plain\(entropy\): expected a tensor, found None. Use a policy that computes"),
        (
            Plain(correction=CorrectionConfig()),
            "logprob_proximal",
            r"Plain\(logprob_proximal\): .* Score the batch with the trainer",
        ),
        (Plain(correction=CorrectionConfig()), "logprob_old", r"Plain\(logprob_old\): expected a tensor, found None"),
    ],
)
def test_what_a_term_needs_is_named(loss, without, message):
    with pytest.raises(ShapeError, match=message):
        loss.of(replace(inputs(), **{without: None}))


def test_a_correction_weighs_the_policy_term_and_moves_its_ratio_to_the_proximal_policy():
    x = inputs()
    config = CorrectionConfig(mode="mask", low=0.8, high=1.4)
    correction = config.of(x.logprob_proximal, x.logprob_old, x.mask)
    assert (correction.keep != x.mask).any()
    found = Plain(correction=config).of(x)
    each = -x.advantage * (x.logprob - x.logprob_proximal) * correction.factor
    expected = aggregate(each, x.mask)
    torch.testing.assert_close(found.total, expected.total)
    assert found.weight == x.mask.sum()
    assert found.metrics["policy_loss"].parts == pytest.approx(expected.metrics["loss"].parts)
    assert found.metrics["rollout_dropped"].mean == pytest.approx(1 - (correction.keep.sum() / x.mask.sum()).item())
    assert {"rollout_weight", "rollout_kl", "rollout_k3", "rollout_chi2"} < set(found.metrics)


def test_an_inner_update_starts_at_ratio_1_whatever_the_rollout_said():
    """With π = π_proximal nothing is clipped, and the gradient is the importance-weighted policy gradient."""
    x = inputs()
    logprob = x.logprob_proximal.clone().requires_grad_()
    found = PPOClip(correction=CorrectionConfig(high=1.2)).of(replace(x, logprob=logprob, logprob_ref=None, entropy=None))
    found.total.backward()
    weight = (x.logprob_proximal - x.logprob_old).exp().clamp(max=1.2)
    torch.testing.assert_close(logprob.grad, torch.where(x.mask, -weight * x.advantage, 0.0))
    assert found.metrics["ratio"].mean == pytest.approx(1.0)
    assert found.metrics["clip_fraction"].mean == 0.0


def test_a_correction_never_touches_critic_divergence_nor_entropy():
    """When everything is dropped, they are what is left."""
    x = inputs()
    nothing = CorrectionConfig(mode="reject", low=1e6, high=1e7)
    found = ActorCritic(correction=nothing, entropy_bonus=0.1, kl_beta=0.3).of(x)
    critic = clipped_value_loss(x.value, x.value_old, x.target, x.mask)
    kl, bonus = kl_loss(x.logprob, x.logprob_ref, x.mask), entropy_loss(x.entropy, x.mask)
    torch.testing.assert_close(found.total, 0.5 * critic.total + 0.3 * kl.total + 0.1 * bonus.total)
    assert found.weight == x.mask.sum()
    assert found.metrics["policy_loss"].mean == 0.0


@pytest.mark.parametrize("chunk", [(2,), (2, 3)])
def test_coarser_ratios_are_those_of_sums(chunk):
    x = inputs(chunk=chunk)
    for level in ("token_level", "action_level", "chunk_level"):
        coarse = [at_granularity(p, level) for p in (x.logprob, x.logprob_old)]
        expected = ppo_clip(*coarse, x.advantage, x.mask, **CLIP)
        found = PPOClip(logprob_type=level).of(replace(x, entropy=None, logprob_ref=None))
        assert found == expected
    weighed = PPOClip(
        logprob_type="chunk_level", correction=CorrectionConfig(), kl_beta=0.2, entropy_bonus=0.1, entropy_type="chunk_level"
    )
    sums = {name: getattr(x, name).flatten(2).sum(2) for name in ("logprob", "logprob_old", "logprob_proximal", "entropy")}
    torch.testing.assert_close(weighed.of(x).total, replace(weighed, logprob_type="token_level").of(replace(x, **sums)).total)


def test_a_finer_reference_is_added_up_too():
    x = inputs(chunk=(2,))
    fine = x.logprob_old - 0.1
    found = PPOClip(logprob_type="chunk_level", kl_beta=1.0).of(replace(x, logprob_ref=fine))
    expected = PPOClip(logprob_type="chunk_level", kl_beta=1.0).of(replace(x, logprob_ref=fine.sum(2)))
    assert found == expected


@pytest.mark.parametrize("level", ["token_level", "action_level", "chunk_level"])
def test_entropy_by_hand(level):
    x = replace(
        inputs(1, 1, chunk=(2, 3)), mask=torch.ones(1, 1, dtype=torch.bool), logprob_ref=None, entropy=torch.ones(1, 1, 2, 3)
    )
    found = PPOClip(entropy_type=level, entropy_bonus=0.5)
    entropy = {"token_level": 1.0, "action_level": 3.0, "chunk_level": 6.0}[level]
    assert found.of(x).metrics["entropy"].mean == entropy
    torch.testing.assert_close(found.of(x).total, PPOClip().of(replace(x, entropy=None)).total - 0.5 * entropy)


@pytest.mark.parametrize("level", ["token_level", "action_level", "chunk_level"])
def test_no_factor_of_k_or_a_creeps_in(level):
    """Elements that did not change add nothing to a coarser ratio; doubling all elements changes nothing in a mean over them."""
    x = replace(inputs(chunk=(2, 3)), entropy=None, logprob_ref=None)
    loss = PPOClip(logprob_type=level)
    expected = loss.of(x)
    assert expected.weight == x.mask.sum()
    if level == "token_level":
        doubled = replace(x, logprob=torch.cat([x.logprob] * 2, 3), logprob_old=torch.cat([x.logprob_old] * 2, 3))
        more = replace(doubled, logprob=torch.cat([doubled.logprob] * 2, 2), logprob_old=torch.cat([doubled.logprob_old] * 2, 2))
    else:
        axis = 3 if level == "action_level" else 2
        more = replace(x, logprob=torch.cat([x.logprob, x.advantage[..., None, None].expand_as(x.logprob)], axis))
        more = replace(more, logprob_old=torch.cat([x.logprob_old, x.advantage[..., None, None].expand_as(x.logprob)], axis))
    found = loss.of(more)
    torch.testing.assert_close(found.total, expected.total)
    assert found.weight == expected.weight
    for name, metric in expected.metrics.items():
        assert found.metrics[name].mean == pytest.approx(metric.mean)


FULL = [
    {"kl_beta": 0.3, "kl_type": "k3+", "entropy_bonus": 0.1, "correction": CorrectionConfig(level="sequence", veto=0.3)},
    {
        "loss_agg_func": "seq-mean-token-mean",
        "kl_beta": 0.1,
        "correction": CorrectionConfig(mode="mask", level="geometric", low=0.9, high=1.2),
    },
    {"loss_agg_func": "seq-mean-token-sum", "logprob_type": "chunk_level", "entropy_type": "action_level", "entropy_bonus": 0.2},
    {"loss_agg_func": "constant-length", "loss_agg_length": 4, "logprob_type": "action_level", "kl_beta": 0.2, "kl_type": "k2"},
]


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from(FULL),
    st.sampled_from([(), (2,), (2, 2)]),
)
def test_the_split_changes_no_gradient(seed, sizes, options, chunk):
    x, loss = inputs(sum(sizes), 3, chunk, seed), ActorCritic(value_clip=0.2, **options)
    x = replace(x, mask=x.mask | (torch.arange(3) == 0))

    def gradient(pieces):
        leaves = {name: getattr(x, name).clone().requires_grad_() for name in ("logprob", "value", "entropy")}
        whole, start, outputs = replace(x, **leaves), 0, []
        for size in pieces:
            rows = {name: getattr(whole, name)[start : start + size] for name in INPUT_NAMES if not name.startswith("version")}
            outputs.append(loss.of(LossInputs(**rows)))
            start += size
        sum(output.total for output in outputs).backward()
        weight = sum(output.weight for output in outputs)
        zeros = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad / weight for leaf in leaves.values()]
        return zeros, merge(output.metrics for output in outputs)

    (expected, metrics), (found, merged) = gradient([sum(sizes)]), gradient(sizes)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=0)
    assert all(merged[name].parts == pytest.approx(metrics[name].parts) for name in metrics)


@pytest.mark.parametrize("options", FULL)
@pytest.mark.parametrize("chunk", [(), (2, 2)])
def test_masked_garbage_gives_no_nan(options, chunk):
    x = inputs(chunk=chunk)
    expected = ActorCritic(**options).of(x)
    noisy = {}
    for name in INPUT_NAMES[1:-2]:
        tensor = getattr(x, name)
        noisy[name] = torch.where(x.mask.reshape(*x.mask.shape, *[1] * (tensor.dim() - 2)), tensor, torch.nan)
    leaves = [noisy[name].requires_grad_() for name in ("logprob", "value", "entropy")]
    found = ActorCritic(**options).of(LossInputs(mask=x.mask, **noisy))
    found.total.backward()
    torch.testing.assert_close(found.total.detach(), expected.total)
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


def test_gradients():
    x = inputs(2, 2, (2,))
    loss = ActorCritic(kl_beta=0.3, entropy_bonus=0.1, correction=CorrectionConfig(high=1.1), logprob_type="chunk_level")

    def total(logprob, value, entropy):
        return loss.of(replace(x, logprob=logprob, value=value, entropy=entropy)).total

    assert torch.autograd.gradcheck(total, [y.clone().requires_grad_() for y in (x.logprob, x.value, x.entropy)])


def test_no_input_is_changed():
    x = inputs(chunk=(2, 2))
    before = {name: getattr(x, name).clone() for name in INPUT_NAMES[:-2]}
    ActorCritic(**FULL[0]).of(x)
    assert all(torch.equal(getattr(x, name), tensor) for name, tensor in before.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_in_single_out(dtype):
    x = inputs(chunk=(2,))
    low = {name: getattr(x, name).to(dtype) for name in INPUT_NAMES[1:-2]}
    found = ActorCritic(**FULL[0]).of(LossInputs(mask=x.mask, **low))
    assert found.total.dtype == torch.float32
    torch.testing.assert_close(found.total.double(), ActorCritic(**FULL[0]).of(x).total, rtol=0.05, atol=0.05)


def test_a_batch_and_its_evaluation_hold_the_inputs():
    batch = random_batch(3, 2, as_array=torch.as_tensor)
    t = replace(batch.trajectory, reference=batch.trajectory.reward, proximal=batch.trajectory.logprob + 1)
    batch = replace(batch, trajectory=t)
    evaluation = Rescored(logprob=t.logprob + 2, entropy=t.reward, value=t.reward + 1, version=5)
    x = LossInputs.of(batch, evaluation)
    expected = {
        "mask": t.mask, "logprob": evaluation.logprob, "logprob_old": t.logprob, "logprob_proximal": t.proximal,
        "logprob_ref": t.reference, "advantage": batch.credit.advantage, "target": batch.credit.target, "value": evaluation.value,
        "entropy": evaluation.entropy, "version": t.version, "version_now": 5,
    }  # fmt: skip
    for name, value in expected.items():
        assert getattr(x, name) is value
    assert torch.equal(x.value_old, t.value[:, :-1])
    assert LossInputs.of(replace(batch, trajectory=replace(t, value=None)), evaluation).value_old is None
    with pytest.raises(ShapeError, match=r"someone\(logprob\): expected a tensor, found None"):
        LossInputs(mask=t.mask).need("logprob", by="someone")
    loss = PPOClip(kl_beta=0.1, correction=CorrectionConfig())
    assert loss(batch, evaluation) == loss.of(x)


def with_policies(loss):
    """The contract's batches have neither a proximal policy nor a reference; rows of these move with the batch."""

    def call(batch, evaluation):
        t = batch.trajectory
        shift = 0.2 * t.reward.reshape(*t.reward.shape, *[1] * (t.logprob.dim() - 2))
        reference = (t.logprob - 0.5 * shift).flatten(2).sum(2) if t.logprob.dim() > 2 else t.logprob - 0.5 * shift
        return loss(replace(batch, trajectory=replace(t, proximal=t.logprob + shift, reference=reference)), evaluation)

    return call


@pytest.mark.parametrize("options", FULL)
@pytest.mark.parametrize("chunk", [(), (2,), (2, 3)])
def test_contract(options, chunk):
    LossContract(loss=with_policies(ActorCritic(**options)), as_array=torch.as_tensor, chunk=chunk).run()


def test_by_name_with_nested_parameters():
    params = {"kl_beta": 0.1, "kl_type": "low_var_kl", "logprob_type": "chunk_level", "correction": {"mode": "mask", "low": 0.5}}
    found = LOSSES.build("ppo_clip", params, place="algorithm")
    expected = PPOClip(
        kl_beta=0.1, kl_type="low_var_kl", logprob_type="chunk_level", correction=CorrectionConfig(mode="mask", low=0.5)
    )
    assert found == expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"kl_beta": -0.1}, r"algorithm\.kl_beta: expected"),
        ({"entropy_bonus": -0.1}, r"algorithm\.entropy_bonus: expected"),
        ({"kl_type": "k33"}, r"algorithm\.kl_type: no choice 'k33'"),
        ({"logprob_type": "chunk"}, r"algorithm\.logprob_type: no choice 'chunk'"),
        ({"loss_agg_func": "constant-length"}, r"algorithm\.loss_agg_length: expected"),
        ({"correction": {"hi": 2.0}}, r"algorithm\.correction\.hi: unknown key"),
        ({"correction": {"low": 3.0}}, r"algorithm\.correction"),
    ],
)
def test_parameters_are_checked(params, message):
    with pytest.raises(ConfigError, match=message):
        LOSSES.build("ppo_clip", params, place="algorithm")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"kl_type": "k3k"}, "kl_type: no estimate 'k3k'. Did you mean 'k3'"),
        ({"logprob_type": "chunk_leval"}, "logprob_type: no granularity 'chunk_leval'. Did you mean 'chunk_level'"),
        ({"entropy_type": "step_level"}, "entropy_type: no granularity 'step_level'"),
        ({"loss_agg_func": "token_mean"}, "loss_agg_func: no aggregation 'token_mean'. Did you mean 'token-mean'"),
    ],
)
def test_names_are_checked_in_python_too(params, message):
    with pytest.raises(ConfigError, match=message):
        PPOClip(**params)

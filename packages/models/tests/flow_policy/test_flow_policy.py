import dataclasses
import itertools

import numpy as np
import pytest
import torch
from draws import batch_of, seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.capabilities import HasExplorationSchedule, HasFlowRegression, HasNoiseSteering, HasSFTLoss, RealTimeChunkingPolicy
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.off_policy import HasQFunctions
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.flow import FlowSampling
from rlinf.models.flow_policy import FlowPolicyConfig

LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32)
SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(3,), dtype="float32")},
    action=ArraySpec(shape=(2,), dtype="float32", low=LOW, high=HIGH),
    max_episode_steps=10,
)
SMALL = FlowPolicyConfig(num_action_chunks=2, horizon=3, hidden_sizes=(16,), token_width=8)
METHODS = ["flow_sde", "flow_noise", "flow_cps", "flow_ode"]


def states(rows, seed=0):
    return {"states": torch.randn(rows, 3, generator=seeded(seed))}


@pytest.mark.parametrize(("method", "joint"), list(itertools.product(METHODS, [False, True])))
def test_contract(method, joint):
    sampling = FlowSampling(noise_method=method, joint_logprob=joint)
    policy = dataclasses.replace(SMALL, sampling=sampling, squash=joint).build(SPEC, seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=seeded(3))
    PolicyContract(policy=policy, spec=SPEC, as_array=torch.as_tensor, generator=seeded).run()


@pytest.mark.parametrize(("level", "axes"), [("token_level", (2, 2)), ("action_level", (2,)), ("chunk_level", ())])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("training", [False, True])
def test_scores_agree(level, axes, mode, training):
    policy = dataclasses.replace(SMALL, logprob_type=level).build(SPEC, seed=0).train(training)
    decision = policy.predict_action_batch(states(5), mode, generator=seeded(1))
    assert decision.logprob.shape == (5, *axes)
    found = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(found.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(found.value[:, 0], decision.value, atol=1e-5, rtol=0.0)
    assert found.entropy.shape == found.logprob.shape
    alone = policy.default_forward(batch_of(decision).rows(slice(2, 3)))
    torch.testing.assert_close(alone.logprob, found.logprob[2:3], atol=1e-5, rtol=0.0)


def test_the_whole_chain_may_count():
    sampling = FlowSampling(density="chain", joint_logprob=True)
    policy = dataclasses.replace(SMALL, sampling=sampling).build(SPEC, seed=0)
    decision = policy.predict_action_batch(states(5), generator=seeded(1))
    found = policy.default_forward(batch_of(decision)).logprob[:, 0]
    torch.testing.assert_close(found, decision.logprob, atol=1e-5, rtol=0.0)
    cut = dataclasses.replace(SMALL, sampling=FlowSampling(joint_logprob=True)).build(SPEC, seed=0)
    assert (cut.default_forward(batch_of(decision)).logprob[:, 0] - found).abs().min() > 0.1


def test_actions_have_the_units_of_the_environment():
    policy = dataclasses.replace(SMALL, squash=True).build(SPEC, seed=0)
    action = policy.predict_action_batch(states(200), generator=seeded(1)).action.numpy()
    assert (action >= LOW).all()
    assert (action <= HIGH).all()
    assert action[..., 1].max() > 3.0


def test_a_number_that_can_be_but_one_says_nothing_of_the_others():
    """As the gripper of an arm that holds it shut: soft actor-critics had an infinite log-probability."""
    low, high = np.array([-1.0, 0.5], np.float32), np.array([1.0, 0.5], np.float32)
    spec = dataclasses.replace(SPEC, action=ArraySpec(shape=(2,), dtype="float32", low=low, high=high))
    policy = FlowPolicyConfig(num_q_heads=2, squash=True).build(spec, seed=0)
    action, logprob = policy.sample_action(states(3), generator=seeded(0))
    assert action[..., 1].eq(0.5).all()
    logprob.sum().backward()
    assert logprob.isfinite().all()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)


def test_capabilities():
    policy = SMALL.build(SPEC, seed=0)
    for protocol in (HasSFTLoss, HasFlowRegression, HasNoiseSteering, HasExplorationSchedule):
        assert isinstance(policy, protocol)
    assert not isinstance(policy, HasQFunctions)
    assert isinstance(dataclasses.replace(SMALL, horizon=None, num_q_heads=2).build(SPEC, seed=0), HasQFunctions)


@pytest.mark.parametrize("normalised", [False, True])
def test_critics_with_normalised_layers_judge_no_higher_far_away(normalised):
    soft = dataclasses.replace(SMALL, horizon=None, num_q_heads=2, q_layer_norm=normalised).build(SPEC, seed=0)
    seen, action = states(4), torch.randn(4, 2, 2, generator=seeded(1))
    found = [soft.q_values(seen, action * scale).abs().max().item() for scale in (1.0, 1e4)]
    assert (found[1] < 10.0 * found[0]) == normalised


def test_steering():
    policy = SMALL.build(SPEC, seed=0)
    still = policy.steer(states(4), torch.zeros(4, *policy.noise_shape))
    torch.testing.assert_close(still, policy.predict_action_batch(states(4), "eval").action)
    other = policy.steer(states(4), torch.ones(4, *policy.noise_shape))
    assert (other - still).abs().min() > 1e-3


def test_annealing_reaches_the_context():
    sampling = FlowSampling(noise_anneal=(0.8, 0.2, 10))
    policy = dataclasses.replace(SMALL, sampling=sampling).build(SPEC, seed=0)
    before = policy.predict_action_batch(states(4), generator=seeded(0))
    policy.set_global_step(10)
    after = policy.predict_action_batch(states(4), generator=seeded(0))
    assert before.context["noise_level"].unique().item() == pytest.approx(0.8)
    assert after.context["noise_level"].unique().item() == pytest.approx(0.2)
    found = policy.default_forward(batch_of(before)).logprob[:, 0]
    torch.testing.assert_close(found, before.logprob, atol=1e-5, rtol=0.0)


def test_regression_on_decisions():
    config = dataclasses.replace(SMALL, sampling=FlowSampling(noise_method="flow_ode", likelihood="matching", matching_draws=5))
    one, other = config.build(SPEC, seed=0), config.build(SPEC, seed=1)
    decision = one.predict_action_batch(states(6), generator=seeded(0))
    again = one.predict_action_batch(states(6), generator=seeded(0))
    torch.testing.assert_close(again.context["matching_noise"], decision.context["matching_noise"])
    torch.testing.assert_close(one.default_forward(batch_of(decision)).logprob[:, 0], decision.logprob, atol=1e-6, rtol=0.0)
    found = [policy.flow_regression(decision.context) for policy in (one, other)]
    assert found[0].prediction.shape == found[0].previous.shape == found[0].target.shape == (6, 5, 2, 2), "what was executed"
    assert found[0].prediction.requires_grad
    torch.testing.assert_close(found[0].prediction, found[0].previous)
    torch.testing.assert_close(found[1].previous, found[0].previous)
    assert (found[0].prediction - found[1].prediction).abs().max() > 1e-3
    wanted = decision.context["matching_noise"] - decision.context["made"][:, None]
    torch.testing.assert_close(found[0].target, wanted[:, :, :2])
    error = (found[0].prediction - found[0].target).square().mean((1, 2, 3))
    torch.testing.assert_close(decision.logprob, -error)
    with pytest.raises(ConfigError, match=r"sampling\.likelihood: chains have no draws to regress on\. Set it to matching"):
        SMALL.build(SPEC, seed=0).flow_regression(decision.context)


@pytest.mark.parametrize("wrong", [{"noise_method": "flow_sde"}, {"noise_method": "flow_ode", "joint_logprob": True}])
def test_only_what_the_ode_makes_is_judged_by_matching(wrong):
    with pytest.raises(ConfigError, match="likelihood: 'matching' judges what the ODE makes"):
        FlowSampling(likelihood="matching", **wrong)


def test_demonstrations_may_be_shorter_than_the_horizon():
    policy = SMALL.build(SPEC, seed=0)
    mask = torch.tensor([[True, True], [True, False]])
    loss = policy.sft_loss(states(2), torch.zeros(2, 2, 2), mask=mask, generator=seeded(0))
    assert loss.weight.item() == 3.0
    with pytest.raises(ShapeError, match="expected at most 3 steps, found 4"):
        policy.sft_loss(states(2), torch.zeros(2, 4, 2))


def test_wrong_configurations():
    for options, match in [
        ({"horizon": 1}, "horizon: expected at least"),
        ({"num_q_heads": 2}, "every step of the flow is executed"),
        ({"num_q_heads": 2, "horizon": None, "sampling": FlowSampling(noise_method="flow_cps")}, "has no density"),
        ({"logprob_type": "token_level", "sampling": FlowSampling(density="chain")}, "has no sampling.density"),
        ({"hidden_sizes": ()}, "hidden_sizes"),
    ]:
        with pytest.raises(ConfigError, match=match):
            dataclasses.replace(SMALL, **options)
    with pytest.raises(ShapeError, match=r"expected the key 'states', found \['images'\]"):
        SMALL.build(SPEC, seed=0).predict_action_batch({"images": torch.zeros(1, 3)})


def test_building_leaves_the_global_generator():
    before = torch.random.get_rng_state()
    one, again, other = (SMALL.build(SPEC, seed=seed).velocity.out.weight for seed in (3, 3, 4))
    assert (torch.random.get_rng_state() == before).all()
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_continuing_a_chunk():
    policy = dataclasses.replace(SMALL, num_action_chunks=3).build(SPEC, seed=0)
    assert isinstance(policy, RealTimeChunkingPolicy)
    previous = policy.predict_action_batch(states(8), generator=seeded(0)).action[:, 1:]
    free = policy.continue_chunk(states(8), previous, delay=0, generator=seeded(1))
    kept = policy.continue_chunk(states(8), previous, delay=2, generator=seeded(1))
    off = [(decision.action[:, :2] - previous).square().mean().item() for decision in (free, kept)]
    assert off[1] < 0.25 * off[0]
    torch.testing.assert_close(policy.default_forward(batch_of(kept)).value[:, 0], kept.value, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("eval_noise", ["zero", "sample"])
def test_where_nothing_is_in_execution_a_chunk_is_that_of_an_evaluation(eval_noise):
    policy = dataclasses.replace(SMALL, sampling=dataclasses.replace(SMALL.sampling, eval_noise=eval_noise)).build(SPEC, seed=0)
    alone = policy.predict_action_batch(states(8), "eval", generator=seeded(1)).action
    nothing = policy.continue_chunk(states(8), alone[:, :0], delay=0, generator=seeded(1)).action
    torch.testing.assert_close(nothing, alone)


def test_bounds_that_are_farther_apart_than_float32_counts_are_none():
    most = np.full(2, np.finfo(np.float32).max)
    action = ArraySpec(shape=(2,), dtype="float32", low=-most, high=most)
    policy = SMALL.build(dataclasses.replace(SPEC, action=action), seed=0)
    decision = policy.predict_action_batch(states(4), generator=seeded(1))
    assert torch.isfinite(decision.action).all()
    assert torch.isfinite(policy.sft_loss(states(4), decision.action).total)

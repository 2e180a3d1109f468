import dataclasses

import numpy as np
import pytest
import torch
from bandits import clone, learn
from draws import seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.capabilities import HasSFTLoss
from rlinf.core.errors import ShapeError
from rlinf.core.off_policy import HasQBatchNorm, HasQDropout, HasQFunctions
from rlinf.core.testing.policy import PolicyContract
from rlinf.models import MLPPolicyConfig

ACTION = ArraySpec(shape=(2,), dtype="float32", low=np.float32([-2, -1]), high=np.float32([2, 0.5]))
SPEC = EnvSpec(observation={"states": ArraySpec(shape=(4,), dtype="float32")}, action=ACTION, max_episode_steps=9)
TANH = MLPPolicyConfig(hidden_sizes=(16,), distribution="tanh_gaussian", num_action_chunks=2)


def observe(generator, rows):
    return {"states": torch.randn(rows, 4, generator=generator)}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprob_type": "action_level", "state_dependent_std": True},
        {"logprob_type": "token_level", "num_q_heads": 3, "q_hidden_sizes": (8,), "q_layer_norm": True},
        {"distribution": "gaussian", "state_dependent_std": True, "add_value_head": False},
        {"distribution": "gaussian", "logprob_type": "action_level", "num_q_heads": 2, "q_head": "crossq"},
    ],
    ids=["tanh", "tanh_state_std", "tanh_q", "gaussian_state_std", "gaussian_crossq"],
)
def test_contract(fields):
    policy = dataclasses.replace(TANH, **fields).build(SPEC, seed=0)
    PolicyContract(policy=policy, spec=SPEC, as_array=torch.as_tensor, generator=seeded).run()


def test_capabilities():
    without, withq = TANH.build(SPEC, seed=0), dataclasses.replace(TANH, num_q_heads=2).build(SPEC, seed=0)
    assert isinstance(without, HasSFTLoss)
    assert not isinstance(without, HasQFunctions)
    assert isinstance(withq, HasQFunctions)
    # Q-functions change neither actor nor critic.
    for name, tensor in without.weights().tensors.items():
        assert torch.equal(tensor, withq.weights().tensors[name])
    observation = observe(seeded(), 5)
    action, logprob = withq.sample_action(observation, generator=seeded(1))
    decision = withq.predict_action_batch(observation, generator=seeded(1))
    torch.testing.assert_close(action, decision.action)
    torch.testing.assert_close(logprob, decision.logprob)
    assert action.requires_grad
    assert withq.q_values(observation, action).shape == (5, 2)
    assert withq.q_values(observation, action.detach().numpy()).shape == (5, 2)


def test_dropout_is_that_of_training():
    with_dropout = dataclasses.replace(TANH, num_q_heads=2, q_dropout=0.5).build(SPEC, seed=0)
    observation = observe(seeded(), 5)
    action, _ = with_dropout.sample_action(observation, generator=seeded(1))
    whole = with_dropout.q_values(observation, action)
    torch.testing.assert_close(whole, with_dropout.dropped_q_values(observation, action))
    assert (whole != with_dropout.dropped_q_values(observation, action, generator=seeded(2))).all()
    without, crossq = (dataclasses.replace(TANH, num_q_heads=2, q_head=head).build(SPEC, seed=0) for head in ("multi", "crossq"))
    for policy in (without, crossq):
        assert isinstance(policy, HasQDropout)
        assert isinstance(policy, HasQBatchNorm)
        dropped = policy.dropped_q_values(observation, action, generator=seeded(2))
        torch.testing.assert_close(policy.q_values(observation, action), dropped)


def test_which_critics_normalise_batches():
    assert [replaced.traits.q_batch_norm for replaced in (TANH, dataclasses.replace(TANH, q_head="crossq"))] == [False, True]


def test_the_actor_follows_the_critics():
    """∂Q/∂a reaches the actor, and ∂ log π / ∂θ agrees with finite differences of the sampled action's own density."""
    policy = dataclasses.replace(TANH, num_q_heads=2, hidden_sizes=(4,), q_hidden_sizes=(4,)).build(SPEC, seed=0)
    observation = observe(seeded(), 3)
    weight = policy.actor[-1].bias

    def objective(shift):
        with torch.no_grad():
            weight[0] += shift
        action, logprob = policy.sample_action(observation, generator=seeded(2))
        with torch.no_grad():
            weight[0] -= shift
        return (policy.q_values(observation, action).min(-1).values - 0.3 * logprob).sum()

    objective(0.0).backward()
    slope = (objective(1e-2) - objective(-1e-2)).item() / 2e-2
    assert weight.grad[0].item() == pytest.approx(slope, rel=2e-2, abs=1e-3)


def test_no_value_head():
    policy = dataclasses.replace(TANH, add_value_head=False).build(SPEC, seed=0)
    assert policy.predict_action_batch({"states": torch.zeros(2, 4)}).value is None
    assert not any(name.startswith("critic") for name, _ in policy.named_parameters())


@pytest.mark.parametrize(
    "fields", [{"distribution": "gaussian"}, {}, {"state_dependent_std": True}, {"logprob_type": "token_level"}]
)
def test_a_bandit_is_learned(fields):
    config = dataclasses.replace(TANH, **fields)
    assert learn(config.build(SPEC, seed=0), observe) > 0.5


def test_a_shuffled_bandit_is_not_learned():
    rises = [learn(TANH.build(SPEC, seed=seed), observe, shuffle=True, seed=seed) for seed in range(3)]
    assert abs(sum(rises) / 3) < 0.3


def expert(observation):
    state = observation["states"]
    step = torch.stack([state[:, 0].tanh(), -0.25 + 0.5 * (state[:, 1] + state[:, 2]).tanh()], -1)
    return torch.stack([step, 0.5 * step], 1)


@pytest.mark.parametrize("distribution", ["gaussian", "tanh_gaussian"])
def test_cloning(distribution):
    policy = dataclasses.replace(TANH, distribution=distribution, hidden_sizes=(32,)).build(SPEC, seed=0)
    first, last = clone(policy, observe, expert, steps=200)
    assert last < 0.1 * first


def test_the_loss_of_cloning_by_hand():
    policy = TANH.build(SPEC, seed=0)
    observation = {"states": torch.ones(2, 4)}
    mean = policy.predict_action_batch(observation, "eval").action
    action = mean + torch.tensor([2.0, 0.0])
    action[1, 1] = torch.nan
    output = policy.sft_loss(observation, action, mask=torch.tensor([[True, True], [True, False]]))
    # three steps count; each is off by the radius of the first dimension, and not at all in the second
    assert output.total.item() == pytest.approx(1.5)
    assert output.weight.item() == 3.0
    output.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)
    with pytest.raises(ShapeError, match=r"sft_loss\(action\): expected \(2, 2, 2\), found \(2, 2\)"):
        policy.sft_loss(observation, action[:, 0])
    with pytest.raises(ShapeError, match=r"sft_loss\(mask\): expected \(2, 2\), found \(2,\)"):
        policy.sft_loss(observation, action, mask=[True, False])


@pytest.mark.parametrize("q_head", ["multi", "crossq"])
def test_soft_actor_critic_on_a_known_q(q_head):
    """r = −(a₀ − s₀)²: the critics learn it, and the actor that follows them finds a₀ = s₀."""
    config = MLPPolicyConfig(
        hidden_sizes=(32,), activation="relu", distribution="tanh_gaussian", num_q_heads=2, q_head=q_head, q_hidden_sizes=(32,)
    )
    policy, generator = config.build(SPEC, seed=0), seeded()
    of_critic = [p for name, p in policy.named_parameters() if name.startswith("q_head")]
    of_actor = [p for name, p in policy.named_parameters() if name.startswith(("actor", "log_std"))]
    critic, actor = torch.optim.Adam(of_critic, 5e-3), torch.optim.Adam(of_actor, 5e-3)

    def rewards(observation, action):
        return -(action[:, 0, 0] - observation["states"][:, 0]).square()

    for step in range(400):
        observation = observe(generator, 128)
        action = 4 * torch.rand(128, 1, 2, generator=generator) - 2
        loss = policy.batch_q_values(observation, action) - rewards(observation, action)[:, None]
        critic.zero_grad()
        loss.square().mean().backward()
        critic.step()
        if step % 2 and step > 100:
            fresh, logprob = policy.sample_action(observation, generator=generator)
            loss = 0.02 * logprob - policy.q_values(observation, fresh).min(-1).values
            actor.zero_grad()
            loss.mean().backward()
            actor.step()
    test = observe(seeded(5), 256)
    decision = policy.predict_action_batch(test, "eval")
    with torch.no_grad():
        error = policy.q_values(test, decision.action).mean(-1) - rewards(test, decision.action)
    assert error.abs().mean() < 0.25
    reachable = test["states"][:, 0].clamp(-2, 2)
    assert (decision.action[:, 0, 0] - reachable).abs().mean() < 0.35

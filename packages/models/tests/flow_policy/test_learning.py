"""It learns, in seconds: imitation, a bandit by PPO and its control, and soft actor-critic on a known reward."""

import dataclasses

import pytest
import torch
from bandits import gain
from draws import seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.flow import FlowSampling
from rlinf.models.flow_policy import FlowPolicyConfig

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(3,), dtype="float32")},
    action=ArraySpec(shape=(2,), dtype="float32"),
    max_episode_steps=10,
)
SMALL = FlowPolicyConfig(num_action_chunks=2, hidden_sizes=(32, 32), token_width=8)


def test_imitation():
    """A chunk that depends on the state and on the step is found again."""
    policy, generator = SMALL.build(SPEC, seed=0), seeded(0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    def expert(states):
        return torch.stack([states[:, :2], -states[:, 1:]], 1)

    for _ in range(400):
        states = torch.randn(128, 3, generator=generator).clamp(-1, 1)
        loss = policy.sft_loss({"states": states}, expert(states), generator=generator)
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
    states = torch.randn(200, 3, generator=generator).clamp(-1, 1)
    found = policy.predict_action_batch({"states": states}, "eval").action
    assert (found - expert(states)).square().mean().item() < 0.05


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [
        FlowSampling(),
        FlowSampling(noise_method="flow_noise", joint_logprob=True, joint_reduction="mean"),
        FlowSampling(noise_method="flow_cps"),
    ],
    ids=lambda s: s.noise_method,
)
def test_a_bandit(sampling, control):
    policy, generator = dataclasses.replace(SMALL, sampling=sampling).build(SPEC, seed=0), seeded(1)
    states = {"states": torch.randn(256, 3, generator=generator)}
    gained = gain(policy, states, generator, lr=3e-3, shuffle=control)
    assert abs(gained) < 0.3 if control else gained > 0.5


SOFT = dataclasses.replace(
    SMALL, num_q_heads=3, squash=True, sampling=FlowSampling(noise_method="flow_noise", noise_logvar_range=(0.08, 0.6))
)


def test_the_log_probability_of_the_unrolled_flow():
    policy = SOFT.build(SPEC, seed=0)
    states = {"states": torch.randn(4, 3, generator=seeded(0))}
    action, logprob = policy.sample_action(states, generator=seeded(1))
    assert action.requires_grad
    assert logprob.requires_grad
    # The same chain, as a decision, then torch's own tanh.
    joint = dataclasses.replace(SOFT, sampling=dataclasses.replace(SOFT.sampling, joint_logprob=True)).build(SPEC, seed=0)
    decision = joint.predict_action_batch(states, generator=seeded(1))
    torch.testing.assert_close(decision.action, action.detach())
    last = decision.context["chains"][:, -1]
    tanh = torch.distributions.TanhTransform()
    expected = decision.logprob - tanh.log_abs_det_jacobian(last, last.tanh()).flatten(1).sum(1)
    torch.testing.assert_close(logprob.detach(), expected, atol=1e-4, rtol=1e-5)
    logprob.sum().backward()
    for name, parameter in policy.named_parameters():
        if name.startswith(("velocity", "noise_net")):
            assert parameter.grad is not None, name
            assert (parameter.grad != 0).any(), name


def test_what_decides_is_apart_from_what_judges():
    policy = SOFT.build(SPEC, seed=0)
    states = {"states": torch.randn(4, 3, generator=seeded(0))}
    decides = {name for name, _ in policy.named_parameters() if name.startswith(("velocity.", "noise_net."))}
    assert set(policy.actor_parameters()) == decides
    action, _ = policy.sample_action(states, generator=seeded(1))
    action.sum().backward()
    assert {name for name, parameter in policy.named_parameters() if parameter.grad is not None} == decides
    evaluated = policy.predict_action_batch(states, "eval").action
    torch.testing.assert_close(policy.most_likely_action(states).detach(), evaluated)


@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_soft_actor_critic_by_a_known_reward(alpha):
    """Reward −4 (a − ½)²: the mean goes to ½, and the temperature keeps the spread."""
    policy, generator = SOFT.build(SPEC, seed=0), seeded(0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    states = {"states": torch.zeros(256, 3)}
    for _ in range(150):
        action, logprob = policy.sample_action(states, generator=generator)
        loss = (alpha * logprob + 4.0 * (action - 0.5).square().flatten(1).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        action, _ = policy.sample_action(states, generator=generator)
    assert action.mean().item() == pytest.approx(0.5, abs=0.1 if alpha == 0.0 else 0.2)
    spread = action.std(0).mean().item()
    assert spread < 0.12 if alpha == 0.0 else spread > 0.15


def test_critics():
    policy = SOFT.build(SPEC, seed=0)
    states, action = {"states": torch.randn(5, 3)}, torch.zeros(5, 2, 2, requires_grad=True)
    q = policy.q_values(states, action)
    assert q.shape == (5, 3)
    q.sum().backward()
    assert (action.grad != 0).any()


def energy(prediction, found):
    return (prediction - found.target).square().flatten(1).mean(1)


def nft(found, advantage):
    """Towards what went well, away from what went badly: r ‖v₊ − v*‖² + (1 − r) ‖v₋ − v*‖² with β = 1."""
    r = 0.5 + 0.5 * advantage.clamp(-1, 1)
    good, bad = (energy(v, found) for v in (found.prediction, 2 * found.previous - found.prediction))
    return (r * good + (1 - r) * bad).mean()


def fpo(found, advantage):
    ratio = (energy(found.previous, found) - energy(found.prediction, found)).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.05) * advantage).mean()


@pytest.mark.parametrize("loss", [nft, fpo], ids=["nft", "fpo"])
@pytest.mark.parametrize("control", [False, True])
def test_a_bandit_without_likelihoods(loss, control):
    """Decisions by the ODE from random noise; the flow is regressed on them."""
    sampling = FlowSampling(noise_method="flow_ode", likelihood="matching", matching_draws=1)
    policy, generator = dataclasses.replace(SMALL, sampling=sampling).build(SPEC, seed=0), seeded(1)
    states = {"states": torch.randn(256, 3, generator=generator)}

    def regressed(policy, decision, advantage):
        return loss(policy.flow_regression(decision.context), advantage)

    gained = gain(policy, states, generator, lr=3e-3, shuffle=control, loss=regressed)
    assert abs(gained) < 0.35 if control else gained > 0.5

"""SAC-Flow and FPO beside executable references: the equations of the papers in Python's own numbers, one at a time.

Zhang et al., "SAC Flow: Sample-Efficient Reinforcement Learning of Flow-Based Policies via Velocity-Reparameterized Sequential
Modeling" (2025), arXiv:2509.25756: Euler steps of the flow, to each of which noise is added, so that an action has a density along
its chain.
McAllister et al., "Flow Matching Policy Gradients" (2025), arXiv:2507.21053: the ratio is that of two losses of flow matching.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from draws import batch_of, seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.flow import FlowSampling
from rlinf.models.flow_policy import FlowPolicyConfig

LOW, HIGH = np.array([-1.0, -3.0], np.float32), np.array([1.0, 1.0], np.float32)
SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(3,), dtype="float32")},
    action=ArraySpec(shape=(2,), dtype="float32", low=LOW, high=HIGH),
    max_episode_steps=9,
)
SOFT = FlowPolicyConfig(num_action_chunks=2, hidden_sizes=(16,), token_width=8, squash=True, add_value_head=False, num_q_heads=2)


def log_normal(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def reference(policy, state, draws, steps, bounds):
    """Action `[K, A]` and its log-probability, of one state and the standard normal numbers of its chain `[steps + 1, K, A]`.

    x₀ = ε₀,   x_{k+1} = x_k − v(x_k, 1 − k/n, s) / n + σ(x_k, s) ε_{k+1},   a = centre + radius · tanh(x_n)
    log π = Σ log N(ε₀; 0, 1) + Σ_k Σ log N(x_{k+1}; x_k − v/n, σ²) − Σ log (radius (1 − tanh² x_n))
    """
    low, high = (2.0 * math.log(bound) for bound in bounds)
    x = draws[0]
    total = sum(log_normal(number, 0.0, 1.0) for row in x for number in row)
    for k in range(steps):
        seen = torch.tensor([x], dtype=torch.float64), torch.tensor([1.0 - k / steps], dtype=torch.float64)
        with torch.no_grad():
            velocity, hidden = policy.velocity(*seen, states=state[None])
            unit = policy.noise_net.net(hidden)
        after = []
        for row in range(len(x)):
            after.append([])
            for column in range(len(x[row])):
                mean = x[row][column] - float(velocity[0, row, column]) / steps
                std = math.exp(0.5 * (low + (high - low) * 0.5 * (float(unit[0, row, column]) + 1.0)))
                after[row].append(mean + std * draws[k + 1][row][column])
                total += log_normal(after[row][column], mean, std)
        x = after
    radius, center = (HIGH - LOW) / 2, (HIGH + LOW) / 2
    action = [[float(center[i]) + float(radius[i]) * math.tanh(number) for i, number in enumerate(row)] for row in x]
    stretch = sum(math.log(float(radius[i]) * (1.0 - math.tanh(number) ** 2)) for row in x for i, number in enumerate(row))
    return action, total - stretch


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_chain_and_its_density(seed, steps):
    bounds = (0.08, 0.6)
    sampling = FlowSampling(noise_method="flow_noise", noise_logvar_range=bounds, num_steps=steps, joint_logprob=True)
    policy = dataclasses.replace(SOFT, sampling=sampling).build(SPEC, seed=seed).double()
    states = torch.randn(5, 3, generator=seeded(seed), dtype=torch.float64)
    action, logprob = policy.sample_action({"states": states}, generator=seeded(seed + 10))
    generator = seeded(seed + 10)
    drawn = [torch.randn(5, 2, 2, generator=generator, dtype=torch.float64) for _ in range(steps + 1)]
    for row in range(5):
        draws = [one[row].tolist() for one in drawn]
        expected, density = reference(policy, states[row], draws, steps, bounds)
        np.testing.assert_allclose(action[row].detach().numpy(), expected, atol=1e-6)
        assert logprob[row].item() == pytest.approx(density, abs=1e-6)


def flow_matching_loss(policy, state, chunk, time, noise):
    """‖v(τ ε + (1 − τ) a, τ, s) − (ε − a)‖², the mean over the numbers of a chunk."""
    x = [[time * e + (1.0 - time) * a for e, a in zip(*rows, strict=True)] for rows in zip(noise, chunk, strict=True)]
    with torch.no_grad():
        seen = torch.tensor([x], dtype=torch.float64), torch.tensor([time], dtype=torch.float64)
        velocity = policy.velocity(*seen, states=state[None])[0][0].tolist()
    wanted = [[e - a for e, a in zip(*rows, strict=True)] for rows in zip(noise, chunk, strict=True)]
    errors = [(v - w) ** 2 for rows in zip(velocity, wanted, strict=True) for v, w in zip(*rows, strict=True)]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_ratio_of_flow_policy_gradients(seed):
    sampling = FlowSampling(noise_method="flow_ode", likelihood="matching", matching_draws=3)
    plain = dataclasses.replace(SOFT, num_q_heads=0, squash=False, sampling=sampling)
    new, old = (plain.build(SPEC, seed=number).double() for number in (seed, seed + 1))
    states = {"states": torch.randn(4, 3, generator=seeded(seed), dtype=torch.float64)}
    decision = old.predict_action_batch(states, generator=seeded(seed + 5))
    found = (new.default_forward(batch_of(decision)).logprob[:, 0] - decision.logprob).exp()
    center, radius = torch.tensor(HIGH + LOW) / 2, torch.tensor(HIGH - LOW) / 2
    for row in range(4):
        chunk = ((decision.action[row] - center) / radius).double().tolist()
        draws = zip(decision.context["matching_time"][row].tolist(), decision.context["matching_noise"][row].tolist(), strict=True)
        lost = [
            flow_matching_loss(old, *given) - flow_matching_loss(new, *given)
            for given in ((states["states"][row], chunk, time, noise) for time, noise in draws)
        ]
        assert len(set(lost)) == 3
        assert found[row].item() == pytest.approx(math.exp(sum(lost) / 3), abs=1e-6)

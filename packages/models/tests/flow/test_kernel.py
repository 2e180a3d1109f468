"""The kernel and the chain against mathematics written a second time."""

import math

import numpy as np
import pytest
import torch

from rlinf.core.errors import ConfigError
from rlinf.models.flow import FlowSampling, sample_chain, score_chain, transition

MEAN, STD = 0.7, 0.2


def gaussian_flow(x, time):
    """E[ε − a | x_τ = x] for a ~ N(MEAN, STD²), which is what a perfect flow of such data says."""
    tau = time[:, None, None]
    centred = x - (1 - tau) * MEAN
    variance = tau**2 + (1 - tau) ** 2 * STD**2
    return tau * centred / variance - (MEAN + (1 - tau) * STD**2 * centred / variance), x


def sampled(rows, *, steps, method, level, train=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, 1, 1, generator=generator, dtype=torch.float64)
    sampling = FlowSampling(num_steps=steps, noise_method=method, joint_logprob=True)
    return sample_chain(gaussian_flow, noise, sampling, noise_level=level, train=train, generator=generator)


@pytest.mark.parametrize("level", [0.3, 0.5, 1.0])
def test_the_stochastic_equation_keeps_the_marginals(level):
    action = sampled(10_000, steps=400, method="flow_sde", level=level).action
    assert action.mean().item() == pytest.approx(MEAN, abs=0.008)
    assert action.std().item() == pytest.approx(STD, abs=0.006)


def moments(steps, level):
    """Mean and deviation of the last state: every step is linear in x, with independent noise. NumPy, from the equation itself."""
    mean, variance = 0.0, 1.0
    for k in range(steps):
        tau, delta = (steps - k) / steps, 1 / steps
        sigma = level * math.sqrt(tau / (1 - tau if k else delta))
        v = tau**2 + (1 - tau) ** 2 * STD**2
        # v(x) = slope · x + offset, and the noise that is seen in x is x + (1 − τ) v(x)
        slope = (tau - (1 - tau) * STD**2) / v
        offset = -slope * (1 - tau) * MEAN - MEAN
        pull = sigma**2 * delta / (2 * tau)
        gain = 1 - delta * slope - pull * (1 + (1 - tau) * slope)
        shift = -delta * offset - pull * (1 - tau) * offset
        mean, variance = gain * mean + shift, gain**2 * variance + sigma**2 * delta
    return mean, math.sqrt(variance)


@pytest.mark.parametrize(("steps", "level"), [(4, 0.0), (4, 0.5), (3, 1.0), (1, 0.5), (10, 0.5)])
def test_few_steps_give_the_moments_of_their_grid(steps, level):
    method = "flow_sde" if level else "flow_ode"
    action = sampled(60_000, steps=steps, method=method, level=level or 0.5).action
    mean, std = moments(steps, level)
    assert action.mean().item() == pytest.approx(mean, abs=0.005)
    assert action.std().item() == pytest.approx(std, rel=0.012)


def test_the_grid_has_the_known_deviations():
    """Of four steps: 0.096 by the ODE, 0.166 by the stochastic equation at η = 0.5; of 400, that of the data."""
    assert moments(4, 0.0)[1] == pytest.approx(0.096, abs=5e-4)
    assert moments(4, 0.5)[1] == pytest.approx(0.166, abs=5e-4)
    assert moments(400, 0.5)[1] == pytest.approx(STD, abs=1.5e-3)


@pytest.mark.parametrize(
    ("level", "expected"), [(0.1, (0.096, 0.187, 0.198)), (0.5, (0.094, 0.172, 0.183)), (1.0, (0.089, 0.131, 0.139))]
)
def test_cps_is_narrower_than_the_flow(level, expected):
    """Every step is linear in x: what becomes of 0 and of 1 says all of its mean."""
    for steps, std in zip((4, 40, 400), expected, strict=True):
        variance, ends = 1.0, torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None, None]
        for k in range(steps):
            time = torch.full((2,), 1 - k / steps, dtype=torch.float64)
            velocity, _ = gaussian_flow(ends, time)
            mean, fresh = transition(
                ends, velocity, time, step=1 / steps, method="flow_cps", noise_level=torch.full((2,), level, dtype=torch.float64)
            )
            variance = (mean[1] - mean[0]).item() ** 2 * variance + fresh[0].item() ** 2
        assert math.sqrt(variance) == pytest.approx(std, abs=6e-4)


def test_without_noise_the_equation_is_the_ode():
    x, v = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    for k in range(4):
        time, level = torch.full((5,), 1 - k / 4), torch.full((5,), 1e-4)
        ode, nothing = transition(x, v, time, step=0.25, method="flow_ode", noise_level=level)
        torch.testing.assert_close(ode, x - 0.25 * v)
        assert (nothing == 0).all()
        for method in ("flow_sde", "flow_cps"):
            mean, std = transition(x, v, time, step=0.25, method=method, noise_level=level)
            torch.testing.assert_close(mean, ode, atol=1e-6, rtol=1e-6)
            assert (std < 3e-4).all()


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_deviations_of_the_stochastic_equation(steps):
    """σ₀ = η, and σ_k = η √((K − k) / (k K)) after it."""
    x = torch.zeros(1, 1, 1)
    for k in range(steps):
        time = torch.tensor([1.0 - k / steps])
        _, std = transition(x, x, time, step=1 / steps, method="flow_sde", noise_level=torch.tensor([0.5]))
        expected = 0.5 if k == 0 else 0.5 * math.sqrt((steps - k) / (k * steps))
        assert std.item() == pytest.approx(expected, rel=1e-5)


def test_coefficients_of_cps():
    """It takes x̂₀ with 1 − τ′, and of the noise τ′ in all: part of what was there, the rest fresh."""
    x, v = torch.randn(1, 1, 1), torch.randn(1, 1, 1)
    mean, std = transition(x, v, torch.tensor([0.75]), step=0.25, method="flow_cps", noise_level=torch.tensor([0.4]))
    angle = math.pi * 0.4 / 2
    expected = (x - 0.75 * v) * 0.5 + (x + 0.25 * v) * 0.5 * math.cos(angle)
    torch.testing.assert_close(mean, expected)
    assert std.item() == pytest.approx(0.5 * math.sin(angle))


def test_an_unknown_method():
    x = torch.zeros(1, 1, 1)
    with pytest.raises(ConfigError, match="expected flow_sde"):
        transition(x, x, torch.ones(1), step=0.25, method="sde", noise_level=torch.ones(1))


def toward_data(x, velocity, t, t_next, level):
    """Flow-SDE as GR00T counts time, from noise at 0 to data at 1, with its velocity; NumPy, from the equation in t."""
    step = t_next - t
    sigma = level * np.sqrt((1 - t) / (t if t > 0 else step))
    data, noise = x + (1 - t) * velocity, x - t * velocity
    mean = data * t_next + noise * (1 - t_next) - sigma**2 * step * noise / (2 * (1 - t))
    return mean, sigma * np.sqrt(step)


def test_both_conventions_of_time_agree():
    x, velocity = np.random.default_rng(0).standard_normal((2, 3, 2, 2))
    for k in range(4):
        mean, std = toward_data(x, velocity, k / 4, (k + 1) / 4, 0.5)
        arguments = (torch.tensor(x), torch.tensor(-velocity), torch.full((3,), 1 - k / 4, dtype=torch.float64))
        found = transition(*arguments, step=0.25, method="flow_sde", noise_level=torch.full((3,), 0.5, dtype=torch.float64))
        np.testing.assert_allclose(found[0], mean, atol=1e-12)
        np.testing.assert_allclose(found[1], np.full((3, 1, 1), std), atol=1e-12)


def by_hand(states, index, velocity, *, steps, level):
    """Log-probabilities of Flow-SDE `[B, H, D]`, one number after the other, from the reverse equation and its score."""
    found = np.zeros(states[:, 0].shape)
    for b, h, d in np.ndindex(*found.shape):
        k = int(index[b])
        tau, delta = 1 - k / steps, 1 / steps
        x, after, v = states[b, k, h, d], states[b, k + 1, h, d], velocity[b, h, d]
        sigma = level * math.sqrt(tau / (1 - (1 - 1 / steps))) if k == 0 else level * math.sqrt(tau / (1 - tau))
        score = -(x + (1 - tau) * v) / tau
        mean = x - delta * v + 0.5 * sigma**2 * delta * score
        z = (after - mean) / (sigma * math.sqrt(delta))
        found[b, h, d] = -0.5 * z * z - math.log(sigma * math.sqrt(delta)) - 0.5 * math.log(2 * math.pi)
    return found


def test_log_probabilities_rederived():
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(3, 3, generator=generator)

    def field(x, time):
        return torch.sin(x @ weight) + time[:, None, None] * x, x

    sampling = FlowSampling(num_steps=4, noise_method="flow_sde")
    noise = torch.randn(12, 2, 3, generator=generator)
    chain = sample_chain(field, noise, sampling, noise_level=0.5, train=True, generator=generator)
    assert set(chain.index.tolist()) == {0, 1, 2, 3}
    states, w = chain.states.double().numpy(), weight.double().numpy()
    at = states[np.arange(12), chain.index.numpy()]
    velocity = np.sin(at @ w) + (1 - chain.index.numpy() / 4)[:, None, None] * at
    expected = by_hand(states, chain.index.numpy(), velocity, steps=4, level=0.5)
    np.testing.assert_allclose(chain.score.logprob.numpy(), expected, atol=1e-5)
    again = score_chain(field, chain.states, chain.index, chain.level, sampling)
    np.testing.assert_allclose(again.logprob.numpy(), expected, atol=1e-5)
    # Every step but the one that was drawn follows the ODE, over the grid 1, 3/4, 1/2, 1/4, 0.
    for k in range(4):
        here = states[:, k]
        straight = here - 0.25 * (np.sin(here @ w) + (1 - k / 4) * here)
        others = chain.index.numpy() != k
        np.testing.assert_allclose(states[others, k + 1], straight[others], atol=1e-5)
        assert (np.abs(states[~others, k + 1] - straight[~others]) > 1e-3).any()

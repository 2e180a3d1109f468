import math

import pytest
import torch

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.flow import FlowSampling, guided, prefix_weights, sample_chain

HORIZON, DELAY, KNOWN = 12, 3, 8
_STEPS = torch.arange(HORIZON, dtype=torch.float32)
SMOOTH = torch.exp(-0.5 * ((_STEPS[:, None] - _STEPS) / 3.0) ** 2) + 1e-3 * torch.eye(HORIZON)
"""Chunks are draws of a smooth random function: neighbouring steps differ little."""


def field(x, time):
    """E[ε − a | x] of chunks a ~ N(0, SMOOTH)."""
    tau = time[:, None, None]
    total = tau**2 * torch.eye(HORIZON) + (1 - tau) ** 2 * SMOOTH
    whitened = torch.linalg.solve(total, x)
    return tau * whitened - (1 - tau) * (SMOOTH @ whitened), x


def chunks(rows, seed):
    noise = torch.randn(rows, HORIZON, 1, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.cholesky(SMOOTH) @ noise


def sample(flow, seed=5, rows=64):
    noise = torch.randn(rows, HORIZON, 1, generator=torch.Generator().manual_seed(seed))
    return sample_chain(flow, noise, FlowSampling(num_steps=10), noise_level=0.5, train=False).action


def test_weights():
    """By hand: c₃ = 5/6, …, c₇ = 1/6."""
    weight = prefix_weights(HORIZON, delay=DELAY, known=KNOWN)
    soft = [c / 6 * (math.exp(c / 6) - 1) / (math.e - 1) for c in (5, 4, 3, 2, 1)]
    assert weight.tolist() == pytest.approx([1.0] * 3 + soft + [0.0] * 4)
    assert prefix_weights(4, delay=0, known=0).tolist() == [0.0] * 4
    assert prefix_weights(4, delay=4, known=4).tolist() == [1.0] * 4
    with pytest.raises(ConfigError, match="0 ≤ delay ≤ known ≤ horizon"):
        prefix_weights(4, delay=3, known=2)


def test_the_prefix_is_kept_and_the_rest_stays_smooth():
    previous = chunks(64, seed=1)
    free = sample(field)
    found = sample(guided(field, previous, prefix_weights(HORIZON, delay=DELAY, known=KNOWN)))

    def off(chunk):
        return (chunk - previous)[:, :DELAY].square().mean().sqrt().item()

    assert off(free) > 1.0
    assert off(found) < 0.15 * off(free)
    # Where nothing is known of the previous chunk, the new one is its own.
    assert (found - previous)[:, KNOWN:].abs().mean() > 0.3
    # No step is larger than chunks have them; pasting the prefix over a free chunk tears it.
    pasted = torch.cat([previous[:, :DELAY], free[:, DELAY:]], 1)
    jump, torn, usual = ((c[:, DELAY] - c[:, DELAY - 1]).square().mean().sqrt().item() for c in (found, pasted, previous))
    assert jump < 1.4 * usual
    assert torn > 3.0 * usual
    roughness, natural = (c.diff(n=2, dim=1).square().mean().sqrt().item() for c in (found, free))
    assert roughness < 2.0 * natural


def test_without_weight_nothing_is_guided():
    nowhere = torch.full((64, HORIZON, 1), float("nan"))
    torch.testing.assert_close(sample(guided(field, nowhere, torch.zeros(HORIZON))), sample(field))


def test_one_step_by_hand():
    """A field v = c x has x̂₀ = (1 − τ c) x, whose derivative is 1 − τ c."""

    def linear(x, time):
        return 0.5 * x, x

    x, aim, tau = torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 3.0), 0.4
    for clip in (5.0, 1.0):
        velocity, _ = guided(linear, aim, torch.tensor([0.7]), clip=clip)(x, torch.tensor([tau]))
        squares = tau**2 + (1 - tau) ** 2
        factor = min(clip, squares / tau**2 * tau / (1 - tau))
        expected = 1.0 - factor * (1 - tau * 0.5) * 0.7 * (3.0 - (1 - tau * 0.5) * 2.0)
        assert velocity.item() == pytest.approx(expected, rel=1e-5)


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="more than 0"):
        guided(field, chunks(2, 0), torch.ones(HORIZON), clip=0.0)
    with pytest.raises(ShapeError, match="a weight for each step"):
        sample(guided(field, chunks(64, 0), torch.ones(HORIZON - 1)))

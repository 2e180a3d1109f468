import math

import numpy as np
import pytest
import torch
from draws import seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.models import MLPPolicyConfig
from rlinf.models.layers.action_distribution import ActionDistribution, Normal
from rlinf.models.layers.gaussian import gaussian_logprob, squash_log_slope, squashed_logprob

LOW, HIGH = np.float32([-1, 0, -4]), np.float32([1, 0.5, 4])
ACTION = ArraySpec(shape=(3,), dtype="float32", low=LOW, high=HIGH)
SPEC = EnvSpec(observation={"states": ArraySpec(shape=(4,), dtype="float32")}, action=ACTION, max_episode_steps=9)


def squashed(**fields):
    config = MLPPolicyConfig(distribution="tanh_gaussian", num_action_chunks=2, **fields)
    return ActionDistribution(config, ACTION, "test")


def test_the_slope():
    u = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
    u.tanh().sum().backward()
    torch.testing.assert_close(squash_log_slope(u.detach()), u.grad.log())


def test_the_slope_far_out():
    """1 − tanh²(50) = 4 exp(−100) to all digits; in floating point 1 − tanh² is 0."""
    far = torch.tensor([50.0, -50.0, 0.0])
    assert squash_log_slope(far).tolist() == pytest.approx([2 * math.log(2) - 100] * 2 + [0.0])


def test_logprob_by_torch():
    distribution = squashed()
    normal = Normal(torch.randn(5, 6, generator=seeded()), torch.linspace(-1, 0.5, 6))
    latent = distribution.draw(normal, seeded(1))
    base = torch.distributions.Normal(normal.mean, normal.log_std.exp())
    half, middle = torch.as_tensor(HIGH - LOW).repeat(2) / 2, torch.as_tensor(HIGH + LOW).repeat(2) / 2
    chain = [torch.distributions.TanhTransform(cache_size=1), torch.distributions.AffineTransform(middle, half)]
    reference = torch.distributions.TransformedDistribution(base, chain)
    action = distribution.action(latent)
    torch.testing.assert_close(action.flatten(1), chain[1](chain[0](latent)))
    terms = reference.log_prob(chain[1](chain[0](latent)))
    torch.testing.assert_close(distribution.logprob(latent, normal), terms.sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(distribution.logprob(latent, normal, "action_level"), terms.view(5, 2, 3).sum(-1))
    torch.testing.assert_close(distribution.logprob(latent, normal, "token_level"), terms.view(5, 2, 3))


def test_the_density_integrates_to_one():
    config = MLPPolicyConfig(distribution="tanh_gaussian")
    distribution = ActionDistribution(config, ArraySpec(shape=(1,), dtype="float32", low=LOW[1:2], high=HIGH[1:2]), "test")
    edge = torch.linspace(0, 0.5, 20_001, dtype=torch.float64)[1:-1]
    latent = ((edge - 0.25) / 0.25).atanh()[:, None].float()
    normal = Normal(torch.full((1,), 0.3).expand(len(latent), 1), torch.tensor([-0.2]))
    assert distribution.logprob(latent, normal).exp().mean().item() * 0.5 == pytest.approx(1.0, abs=1e-3)


def test_a_saturated_action_is_scored():
    distribution = squashed()
    normal = Normal(torch.full((1, 6), 30.0), torch.zeros(6))
    latent = distribution.draw(normal, seeded())
    assert torch.equal(distribution.action(latent)[0, 0], torch.as_tensor(HIGH))
    assert torch.isfinite(distribution.logprob(latent, normal)).all()


def test_a_state_dependent_spread_starts_where_it_is_told():
    distribution = squashed(state_dependent_std=True, logstd_init=-1.5)
    normal = distribution.given(torch.zeros(2, distribution.outputs), distribution.free_log_std())
    torch.testing.assert_close(normal.log_std, torch.full((2, 6), -1.5))
    wide = distribution.given(torch.full((1, 12), 99.0), None).log_std
    assert wide.max() == 2.0


def test_eval_is_the_squashed_mean_and_stays_inside():
    policy = MLPPolicyConfig(distribution="tanh_gaussian").build(SPEC, seed=0)
    with torch.no_grad():
        policy.actor[-1].bias += 100.0
    action = policy.predict_action_batch({"states": torch.zeros(1, 4)}, "eval").action
    assert torch.equal(action[0, 0], torch.as_tensor(HIGH))
    drawn = MLPPolicyConfig(distribution="tanh_gaussian", logstd_init=2.0).build(SPEC, seed=0)
    many = drawn.predict_action_batch({"states": torch.zeros(4096, 4)}, generator=seeded()).action
    assert (many >= torch.as_tensor(LOW)).all()
    assert (many <= torch.as_tensor(HIGH)).all()


def test_bounds_are_needed_and_travel_with_the_weights():
    config = MLPPolicyConfig(distribution="tanh_gaussian")
    infinite = np.full(3, np.inf, dtype=np.float32)
    for bounds in ({}, {"low": -infinite, "high": infinite}):
        spec = EnvSpec(observation=SPEC.observation, action=ArraySpec(shape=(3,), dtype="float32", **bounds), max_episode_steps=9)
        with pytest.raises(ConfigError, match=r"mlp_policy\.distribution: tanh_gaussian needs finite bounds.*Choose distribution"):
            config.build(spec, seed=0)
    assert {"distribution.center", "distribution.radius"} <= set(config.build(SPEC, seed=0).state_dict())
    assert not any("distribution" in name for name in MLPPolicyConfig().build(SPEC, seed=0).state_dict())


def test_the_unit_of_actions():
    distribution = squashed()
    corners = torch.stack([torch.as_tensor(LOW), torch.as_tensor(HIGH)])
    assert distribution.unit(corners[None]).tolist() == [[-1, -1, -1, 1, 1, 1]]


def test_what_a_configuration_refuses():
    with pytest.raises(ConfigError, match=r"logstd_init: expected to lie inside logstd_range \(-5\.0, 2\.0\), found 3"):
        MLPPolicyConfig(state_dependent_std=True, logstd_init=3.0)
    with pytest.raises(ConfigError, match="num_q_heads: expected at least 0, found -1"):
        MLPPolicyConfig(num_q_heads=-1)
    with pytest.raises(ConfigError, match=r"q_hidden_sizes: expected sizes of at least 1, found \[0\]"):
        MLPPolicyConfig(q_hidden_sizes=(0,))
    with pytest.raises(ConfigError, match="critics of CrossQ are normalised already"):
        MLPPolicyConfig(q_head="crossq", q_layer_norm=True)
    with pytest.raises(ConfigError, match="q_dropout: critics of CrossQ have no dropout"):
        MLPPolicyConfig(q_head="crossq", q_dropout=0.1)
    with pytest.raises(ConfigError, match="q_dropout"):
        MLPPolicyConfig(q_dropout=1.0)


@pytest.mark.parametrize("distribution", ["gaussian", "tanh_gaussian"])
def test_recorded_actions_are_scored_as_the_policy_would_score_its_own(distribution):
    config = MLPPolicyConfig(distribution=distribution, num_action_chunks=2, state_dependent_std=True, num_q_heads=2)
    policy = config.build(SPEC, seed=0)
    seen = {"states": torch.randn(7, 4, generator=seeded())}
    action, logprob = policy.sample_action(seen, generator=seeded(1))
    torch.testing.assert_close(policy.action_logprob(seen, action), logprob, rtol=1e-3, atol=1e-3)
    at_bounds = torch.as_tensor(HIGH).expand(7, 2, 3)
    assert policy.action_logprob(seen, at_bounds).isfinite().all()


def test_values_are_apart_from_critics_and_actor():
    policy = MLPPolicyConfig(num_q_heads=2).build(SPEC, seed=0)
    seen = {"states": torch.randn(7, 4, generator=seeded())}
    policy.state_value(seen).sum().backward()
    learned = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert learned == set(policy.value_parameters())
    assert policy.state_value(seen).shape == (7,)
    assert not learned & set(policy.actor_parameters())
    bare = MLPPolicyConfig(num_q_heads=2, add_value_head=False).build(SPEC, seed=0)
    assert bare.value_parameters() == []
    with pytest.raises(ConfigError, match=r"add_value_head.*Set it to true"):
        bare.state_value(seen)


@pytest.mark.parametrize("wide", [False, True])
def test_the_density_of_what_was_drawn_in_one_step(wide):
    mean = torch.tensor([[0.3, -2.0], [9.0, 0.0]], dtype=torch.float64, requires_grad=True)
    free = torch.tensor([-0.5, 0.4], dtype=torch.float64)
    log_std = (free.expand(2, 2).clone() if wide else free).requires_grad_()
    noise = torch.tensor([[1.5, -0.2], [0.0, 2.0]], dtype=torch.float64)
    latent = mean + noise * log_std.exp()
    weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = squashed_logprob(latent, noise, log_std)
    expected = gaussian_logprob(latent, mean, log_std) - squash_log_slope(latent).sum(-1)
    torch.testing.assert_close(found, expected)
    of_found, of_expected = (torch.autograd.grad((x * weight).sum(), (mean, log_std), retain_graph=True) for x in (found, expected))
    torch.testing.assert_close(of_found, of_expected)


@pytest.mark.parametrize("distribution", ["tanh_gaussian", "gaussian"])
def test_a_sample_is_scored_as_its_latent(distribution):
    # The widths of ACTION have the product 1, whose logarithm nobody would miss.
    action = ArraySpec(shape=(3,), dtype="float32", low=LOW, high=HIGH + 1)
    of = ActionDistribution(MLPPolicyConfig(distribution=distribution, num_action_chunks=2), action, "test")
    normal = Normal(torch.randn(5, 6, generator=seeded()), torch.linspace(-1, 0.5, 6))
    action, logprob = of.sample(normal, seeded(1))
    latent = of.draw(normal, seeded(1))
    assert torch.equal(action, of.action(latent))
    torch.testing.assert_close(logprob, of.logprob(latent, normal, "chunk_level"))

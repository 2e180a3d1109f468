import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from draws import batch_of, seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.capabilities import FitsStatistics
from rlinf.core.errors import ConfigError, ShapeError, WeightSyncError
from rlinf.core.registry import MODELS
from rlinf.core.testing.policy import PolicyContract
from rlinf.models import MLPPolicyConfig

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(4,), dtype="float32")},
    action=ArraySpec(shape=(3,), dtype="float32"),
    max_episode_steps=10,
)
SMALL = MLPPolicyConfig(hidden_sizes=(8, 8), num_action_chunks=2)


@pytest.mark.parametrize("config", [SMALL, MLPPolicyConfig(), MLPPolicyConfig(hidden_sizes=(), activation="relu")])
@pytest.mark.parametrize("seed", [0, 1])
def test_contract(config, seed):
    policy = config.build(SPEC, seed=seed)
    PolicyContract(policy=policy, spec=SPEC, as_array=torch.as_tensor, generator=seeded).run()


def test_contract_with_weights_that_have_moved():
    """Fresh actors decide near 0; trained ones do not."""
    policy = SMALL.build(SPEC, seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += torch.randn(parameter.shape, generator=seeded(3))
    PolicyContract(policy=policy, spec=SPEC, as_array=torch.as_tensor, generator=seeded).run()


def test_logprob_and_entropy_by_torch():
    policy = SMALL.build(SPEC, seed=0)
    with torch.no_grad():
        policy.log_std += torch.linspace(-1, 1, 6)
    decision = policy.predict_action_batch({"states": torch.randn(7, 4)}, generator=seeded(1))
    mean = policy.actor(decision.context["states"])
    reference = torch.distributions.Normal(mean, policy.log_std.exp())
    torch.testing.assert_close(decision.logprob, reference.log_prob(decision.action.flatten(1)).sum(-1))
    evaluation = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(evaluation.entropy[:, 0], reference.entropy().sum(-1))
    torch.testing.assert_close(evaluation.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0)
    torch.testing.assert_close(evaluation.value[:, 0], decision.value, atol=1e-5, rtol=0)


def test_what_imitates_data_is_normalised_by_it_for_good():
    policy = MLPPolicyConfig(hidden_sizes=(8,), normalize_observations=True).build(SPEC, seed=0)
    assert isinstance(policy, FitsStatistics)
    policy.fit_statistics(action=np.zeros((2, 3)), states=np.array([[1.0, 0, 0, 0], [5.0, 0, 0, 0]], np.float32))
    before = policy.predict_action_batch({"states": torch.full((7, 4), 3.0)}, mode="eval").action
    policy.observe(batch_of(policy.predict_action_batch({"states": torch.full((7, 4), 90.0)}, generator=seeded(1))))
    assert policy.normalize.mean.tolist() == [3, 0, 0, 0]
    assert torch.equal(policy.predict_action_batch({"states": torch.full((7, 4), 3.0)}, mode="eval").action, before)


def test_gaussian_by_hand():
    from rlinf.models.layers.gaussian import gaussian_entropy, gaussian_logprob

    zero, log_std = torch.zeros(1, 2), torch.tensor([0.0, math.log(2.0)])
    # −½ log 2π twice, −log 2, and −½ (2 / 2)²
    found = gaussian_logprob(torch.tensor([[0.0, 2.0]]), zero, log_std)
    assert found.item() == pytest.approx(-math.log(2 * math.pi) - math.log(2.0) - 0.5)
    assert gaussian_entropy(log_std).item() == pytest.approx(1.0 + math.log(2 * math.pi) + math.log(2.0))


def test_actions_are_drawn_with_their_spread():
    policy = MLPPolicyConfig(hidden_sizes=(8,), logstd_init=math.log(0.3)).build(SPEC, seed=0)
    states = torch.zeros(20_000, 4)
    action = policy.predict_action_batch({"states": states}, generator=seeded(0)).action
    mean = policy.predict_action_batch({"states": states}, "eval").action
    assert action.shape == (20_000, 1, 3)
    torch.testing.assert_close((action - mean).std((0, 1)), torch.full((3,), 0.3), atol=0.01, rtol=0)


def test_the_seed_decides_the_weights_and_nothing_global_moves():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, again, other = (SMALL.build(SPEC, seed=seed).weights().tensors for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["actor.0.weight"], other["actor.0.weight"])


def test_initial_weights():
    policy = MLPPolicyConfig(hidden_sizes=(16, 16)).build(SPEC, seed=0)
    hidden, last, value = policy.actor[2].weight, policy.actor[4].weight, policy.critic[4].weight
    torch.testing.assert_close(hidden @ hidden.T, 2.0 * torch.eye(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0)
    torch.testing.assert_close(value @ value.T, torch.eye(1), atol=1e-5, rtol=0)
    assert not any(policy.actor[i].bias.any() for i in (0, 2, 4))
    assert torch.equal(policy.log_std, torch.full((3,), -0.5))


def test_initial_weights_and_biases_in_bounds():
    """Of every layer, the last one too, as torch's own layers begin by the same generator."""
    config = MLPPolicyConfig(hidden_sizes=(16, 16), weight_init="uniform", add_value_head=False)
    before = torch.get_rng_state()
    one, again, other = (config.build(SPEC, seed=seed).actor for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expected = [torch.nn.Linear(*sizes) for sizes in ((4, 16), (16, 16), (16, 3))]
    for i, layer in enumerate(expected):
        found, bound = one[2 * i], 1.0 / math.sqrt(layer.in_features)
        for name in ("weight", "bias"):
            drawn = getattr(found, name)
            assert 0.5 * bound < drawn.abs().max() <= bound
            torch.testing.assert_close(drawn, getattr(layer, name))
            assert torch.equal(drawn, getattr(again[2 * i], name))
            assert not torch.equal(drawn, getattr(other[2 * i], name))


def test_weights_travel():
    one, other = SMALL.build(SPEC, seed=1), SMALL.build(SPEC, seed=2)
    one.version = 5
    other.load(one.weights())
    observation = {"states": np.ones((2, 4), dtype=np.float32)}
    found, expected = (policy.predict_action_batch(observation, "eval").action for policy in (one, other))
    assert torch.equal(found, expected)
    assert other.version == 5
    assert list(one.weights().tensors) == sorted(one.weights().tensors)


def test_weights_of_another_shape_change_nothing():
    one, other = SMALL.build(SPEC, seed=1), MLPPolicyConfig(hidden_sizes=(8, 9), num_action_chunks=2).build(SPEC, seed=2)
    before = {name: tensor.clone() for name, tensor in one.weights().tensors.items()}
    with pytest.raises(WeightSyncError, match=r"actor\.2\.bias\): expected shape \(8,\), found shape \(9,\)"):
        one.load(other.weights())
    assert all(torch.equal(before[name], tensor) for name, tensor in one.weights().tensors.items())


def test_configuration_is_checked():
    assert MODELS.build("mlp_policy", {"hidden_sizes": [64]}, place="model") == MLPPolicyConfig(hidden_sizes=(64,))
    with pytest.raises(ConfigError, match=r"model\.num_action_chunks"):
        MODELS.build("mlp_policy", {"num_action_chunks": 0}, place="model")
    blind = EnvSpec(observation={"main_images": ArraySpec(shape=(8, 8, 3), dtype="uint8")}, action=SPEC.action, max_episode_steps=1)
    with pytest.raises(ConfigError, match="expected the observation 'states', found \\['main_images'\\]"):
        SMALL.build(blind, seed=0)


def test_a_missing_observation_is_named():
    with pytest.raises(ShapeError, match="expected the key 'states', found \\['images'\\]"):
        SMALL.build(SPEC, seed=0).predict_action_batch({"images": np.zeros((1, 4))})


def test_the_configuration_is_light():
    code = "import sys, rlinf.models.small.mlp; sys.exit('rlinf.models.small._mlp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

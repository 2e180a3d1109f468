"""Numbered actions: a categorical head where the environment has a `Discrete` or a `MultiDiscrete` space."""

import math

import numpy as np
import pytest
import torch
from draws import seeded

from rlinf.core import ArraySpec, Batch, EnvSpec, Trajectory
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.policy import PolicyContract
from rlinf.models import MLPPolicyConfig
from rlinf.models.layers.categorical import CategoricalDistribution

ONE = ArraySpec(shape=(), dtype="int64", low=np.int64(-1), high=np.int64(1))
SEVERAL = ArraySpec(shape=(2,), dtype="int64", low=np.array([0, 5]), high=np.array([3, 6]))
SMALL = MLPPolicyConfig(hidden_sizes=(8,), num_action_chunks=2)


def spec(action: ArraySpec) -> EnvSpec:
    return EnvSpec(observation={"states": ArraySpec(shape=(4,), dtype="float32")}, action=action, max_episode_steps=9)


def moved(config: MLPPolicyConfig, action: ArraySpec):
    policy = config.build(spec(action), seed=0)
    with torch.no_grad():
        policy.actor[-1].weight += torch.randn(policy.actor[-1].weight.shape, generator=seeded(3))
    return policy


@pytest.mark.parametrize("level", ["chunk_level", "action_level", "token_level"])
@pytest.mark.parametrize("action", [ONE, SEVERAL], ids=["discrete", "multi_discrete"])
def test_contract(action, level):
    config = MLPPolicyConfig(hidden_sizes=(8,), num_action_chunks=2, logprob_type=level, normalize_observations=True)
    policy = moved(config, action)
    PolicyContract(policy=policy, spec=spec(action), as_array=torch.as_tensor, generator=seeded).run()


def test_by_hand():
    """Two control steps of one number: probabilities ¼ and ¾, then ½ and ½."""
    two = ArraySpec(shape=(), dtype="int64", low=np.int64(7), high=np.int64(8))
    distribution = CategoricalDistribution(SMALL, two, "test")
    given = distribution.given(torch.tensor([[0.0, math.log(3.0), 2.0, 2.0]]), None)
    latent = distribution.latent(torch.tensor([[8, 7]]))
    assert latent.tolist() == [[1, 0]]
    assert distribution.action(latent).tolist() == [[8, 7]]
    assert distribution.logprob(latent, given).item() == pytest.approx(math.log(3 / 8))
    assert distribution.logprob(latent, given, "action_level").exp()[0].tolist() == pytest.approx([0.75, 0.5])
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75) + math.log(2.0)
    assert distribution.entropy(given).item() == pytest.approx(entropy)
    assert distribution.unit(torch.tensor([[8, 7]])).tolist() == [[0.0, 1.0, 1.0, 0.0]]
    assert distribution.most_likely(given)[0, 0] == 1


def test_like_torch():
    policy = moved(SMALL, SEVERAL)
    decision = policy.predict_action_batch({"states": torch.randn(6, 4, generator=seeded(1))}, generator=seeded(2))
    assert decision.action.shape == (6, 2, 2)
    output = policy.actor(decision.context["states"]).view(6, 2, 6)
    first, second = (torch.distributions.Categorical(logits=part) for part in (output[..., :4], output[..., 4:]))
    expected = first.log_prob(decision.action[..., 0]) + second.log_prob(decision.action[..., 1] - 5)
    torch.testing.assert_close(decision.logprob, expected.sum(-1))
    rescored = policy.default_forward(Batch.of(Trajectory.of_decisions([decision])))
    torch.testing.assert_close(rescored.entropy[:, 0], (first.entropy() + second.entropy()).sum(-1))


def test_what_is_drawn_has_its_probabilities():
    policy = moved(MLPPolicyConfig(hidden_sizes=(8,)), SEVERAL)
    states = torch.ones(20_000, 4)
    action = policy.predict_action_batch({"states": states}, generator=seeded(0)).action[:, 0]
    output = policy.actor(states[:1])[0]
    for column, (logits, low) in enumerate(((output[:4], 0), (output[4:], 5))):
        found = torch.bincount(action[:, column] - low, minlength=len(logits)) / len(action)
        torch.testing.assert_close(found, logits.softmax(-1), atol=0.015, rtol=0)
        best = policy.predict_action_batch({"states": states[:1]}, "eval").action[0, 0, column]
        assert best == logits.argmax() + low


def test_imitation_takes_the_step_that_counts():
    policy = moved(SMALL, ONE)
    observation, expert = {"states": torch.randn(3, 4, generator=seeded(1))}, torch.tensor([[-1, 0], [1, 1], [0, 99]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    loss = policy.sft_loss(observation, expert, mask=mask)
    output = policy.actor(observation["states"]).view(3, 2, 3).log_softmax(-1)
    expected = -sum(output[b, k, expert[b, k] + 1] for b, k in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)))
    torch.testing.assert_close(loss.total, expected)
    assert loss.weight == 5
    with pytest.raises(ShapeError, match=r"sft_loss\(action\)"):
        policy.sft_loss(observation, expert[..., None])


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"distribution": "tanh_gaussian"}, "distribution"),
        ({"num_q_heads": 2}, "num_q_heads"),
        ({"state_dependent_std": True}, "state"),
    ],
)
def test_what_only_vectors_have_is_refused(fields, key):
    with pytest.raises(ConfigError, match=rf"^mlp_policy\.{key}.*numbered actions.*Leave it out"):
        MLPPolicyConfig(**fields).build(spec(ONE), seed=0)
    with pytest.raises(ConfigError, match="within bounds"):
        SMALL.build(spec(ArraySpec(shape=(1,), dtype="int64")), seed=0)

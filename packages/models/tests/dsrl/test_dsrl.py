import dataclasses

import numpy as np
import pytest
import torch
from draws import batch_of, seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.capabilities import HasNoiseSteering
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.dsrl import DSRLPolicyConfig

ACTION = ArraySpec(shape=(2,), dtype="float32", low=-np.ones(2, np.float32), high=np.ones(2, np.float32))
STATES = ArraySpec(shape=(3,), dtype="float32")
SPEC = EnvSpec(observation={"states": STATES}, action=ACTION, max_episode_steps=10)
SEEING = dataclasses.replace(SPEC, observation={"states": STATES, "main_images": ArraySpec(shape=(20, 24, 3), dtype="uint8")})
BASE = {"model_type": "flow_policy", "num_action_chunks": 2, "horizon": 3, "hidden_sizes": [16], "token_width": 8}
SMALL = DSRLPolicyConfig(base=BASE, image_size=16, feature_size=8, hidden_sizes=(32, 32), num_q_heads=4)


def states(rows, seed=0):
    return {"states": torch.randn(rows, 3, generator=seeded(seed))}


@pytest.mark.parametrize("spec", [SPEC, SEEING], ids=["states", "images"])
def test_contract(spec):
    policy = SMALL.build(spec, seed=0)
    PolicyContract(policy=policy, spec=spec, as_array=torch.as_tensor, generator=seeded).run()


def test_the_noise_is_one_vector_for_all_steps():
    policy = SMALL.build(SPEC, seed=0)
    decision = policy.predict_action_batch(states(5), generator=seeded(1))
    noise = policy.latent_action(decision.context)
    assert noise.shape == (5, 1, 2)
    assert noise.abs().max() < 1.0
    assert isinstance(policy.base, HasNoiseSteering)
    again = policy.base.steer(states(5), noise.repeat(1, 3, 1))
    torch.testing.assert_close(decision.action, again)
    still = policy.predict_action_batch(states(5), "eval").context["raw_noise"]
    assert (still - decision.context["raw_noise"]).abs().min() > 1e-4


def test_log_probability_by_torch():
    policy = dataclasses.replace(SMALL, noise_bound=1.5).build(SPEC, seed=0)
    decision = policy.predict_action_batch(states(5), generator=seeded(1))
    with torch.no_grad():
        mean, log_std = policy._gaussian(decision.context)
    stretch = torch.distributions.AffineTransform(0.0, 1.5)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), [torch.distributions.TanhTransform(cache_size=1), stretch]
    )
    expected = squashed.log_prob(policy.latent_action(decision.context)[:, 0]).sum(-1)
    torch.testing.assert_close(decision.logprob, expected, atol=1e-4, rtol=1e-4)
    noise, logprob = policy.sample_action(states(5), generator=seeded(1))
    torch.testing.assert_close(noise.detach(), policy.latent_action(decision.context))
    torch.testing.assert_close(logprob.detach(), decision.logprob)
    assert noise.requires_grad
    assert logprob.requires_grad


def test_the_critics():
    policy = SMALL.build(SPEC, seed=0)
    noise = torch.zeros(5, 1, 2, requires_grad=True)
    q = policy.q_values(states(5), noise)
    assert q.shape == (5, 4)
    q.sum().backward()
    assert (noise.grad != 0).any()
    names = {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None}
    assert names == {"critic"}
    decision = policy.predict_action_batch(states(5), "eval")
    torch.testing.assert_close(decision.value, policy.q_values(states(5), policy.latent_action(decision.context)).mean(-1).detach())


def test_the_value_teaches_the_critics_alone():
    policy = SMALL.build(SPEC, seed=0)
    found = policy.default_forward(batch_of(policy.predict_action_batch(states(5), generator=seeded(0))))
    found.value.sum().backward()
    assert {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None} == {"critic"}


def test_wrong_bases():
    with pytest.raises(ConfigError, match="has no initial noise"):
        dataclasses.replace(SMALL, base={"model_type": "mlp_policy"}).build(SPEC, seed=0)
    with pytest.raises(ConfigError, match="noise_bound"):
        dataclasses.replace(SMALL, noise_bound=0.0)
    with pytest.raises(ShapeError, match=r"expected the key 'states'"):
        SMALL.build(SPEC, seed=0).predict_action_batch({"words": np.zeros((1, 2))})


def test_what_is_known_before_it_is_built(tmp_path):
    traits = SMALL.traits
    assert (traits.chunk, traits.observations, traits.latent_action, traits.q_functions) == (2, ("states",), True, True)
    SMALL.check("actor.model")
    with pytest.raises(ConfigError, match=r"actor\.model\.base\.ckpt_path: .*nowhere"):
        dataclasses.replace(SMALL, base={**BASE, "ckpt_path": str(tmp_path / "nowhere")}).check("actor.model")
    with pytest.raises(ConfigError, match=r"^base\.horizons"):
        dataclasses.replace(SMALL, base={**BASE, "horizons": 3})


def test_the_base_is_trained_by_nobody():
    policy = SMALL.build(SPEC, seed=0)
    rest = {name for name, p in policy.named_parameters() if p.requires_grad} - set(policy.actor_parameters())
    assert {name.partition(".")[0] for name in policy.actor_parameters()} == {"encoder", "actor"}
    assert {name.partition(".")[0] for name in rest} == {"critic"}


def test_steering_a_bandit():
    """Paid is the first dimension of the action. Critics learn what noise earns, the actor follows them, the base stays."""
    policy, generator = SMALL.build(SPEC, seed=0), seeded(0)
    frozen = {name: p.clone() for name, p in policy.base.named_parameters()}
    actor = torch.optim.Adam([*policy.encoder.parameters(), *policy.actor.parameters()], lr=3e-3)
    critic = torch.optim.Adam(policy.critic.parameters(), lr=3e-3)
    seen = states(128)

    def earned(mode):
        return policy.predict_action_batch(seen, mode, generator=generator).action[..., 0].mean().item()

    before = earned("eval")
    for _ in range(80):
        with torch.no_grad():
            noise, _ = policy.sample_action(seen, generator=generator)
            reward = policy.decode(seen, noise[:, 0])[..., 0].mean(-1)
        critic.zero_grad()
        (policy.q_values(seen, noise) - reward[:, None]).square().mean().backward()
        critic.step()
        noise, logprob = policy.sample_action(seen, generator=generator)
        actor.zero_grad()
        (0.01 * logprob - policy.q_values(seen, noise).mean(-1)).mean().backward()
        actor.step()
    assert earned("eval") > before + 0.4
    assert all(torch.equal(p, frozen[name]) for name, p in policy.base.named_parameters())

import dataclasses

import numpy as np
import pytest
import torch
from bandits import clone, learn
from draws import batch_of, seeded

from rlinf.core import ArraySpec, EnvSpec
from rlinf.core.capabilities import RecurrentPolicy
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.off_policy import HasQFunctions
from rlinf.core.registry import MODELS
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.small.cma import CMAPolicyConfig
from rlinf.models.small.cross_attention import Attention, InstructionEncoder
from rlinf.models.small.word_hashing import hash_words

ACTION = ArraySpec(shape=(2,), dtype="float32", low=-np.ones(2, np.float32), high=np.ones(2, np.float32))
OBSERVATION = {
    "main_images": ArraySpec(shape=(8, 8, 3), dtype="uint8"),
    "task_descriptions": ArraySpec(shape=(), dtype="<U80"),
    "states": ArraySpec(shape=(3,), dtype="float32"),
}
SPEC = EnvSpec(observation=OBSERVATION, action=ACTION, max_episode_steps=9)
CAMERAS = {"wrist_images": ArraySpec(shape=(2, 8, 8, 3), dtype="uint8")}
SMALL = CMAPolicyConfig(
    preset="tiny", vocab_size=64, word_size=8, max_words=8, instruction_size=8, image_features=16, memory_size=16
)


def observe(generator, rows):
    texts = np.array(["go left", "go to the right door", ""])
    return {
        "main_images": torch.randint(256, (rows, 8, 8, 3), generator=generator, dtype=torch.uint8),
        "task_descriptions": texts[torch.randint(3, (rows,), generator=generator).numpy()],
        "states": torch.randn(rows, 3, generator=generator),
    }


def episode(policy, steps, rows=3, seed=0):
    """Decisions in a row, each with the memory of the one before."""
    generator, state, decisions = seeded(seed), {}, []
    for _ in range(steps):
        decisions.append(policy.predict_action_batch({**observe(generator, rows), **state}, generator=generator))
        state = policy.next_state(decisions[-1])
    return decisions


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, {}),
        ({"distribution": "tanh_gaussian", "num_action_chunks": 2, "num_q_heads": 2, "q_hidden_sizes": (8,)}, CAMERAS),
    ],
    ids=["gaussian", "tanh_q_cameras"],
)
def test_contract(fields, more):
    spec = dataclasses.replace(SPEC, observation={**OBSERVATION, **more})
    policy = dataclasses.replace(SMALL, **fields).build(spec, seed=0)
    assert isinstance(policy, RecurrentPolicy)
    assert isinstance(policy, HasQFunctions) == bool(fields.get("num_q_heads"))
    PolicyContract(policy=policy, spec=spec, as_array=torch.as_tensor, generator=seeded).run()


def test_an_episode_is_scored_as_it_was_decided():
    policy = SMALL.build(SPEC, seed=0)
    decisions = episode(policy, 5)
    batch = batch_of(*decisions)
    with torch.no_grad():
        whole, single = policy.default_forward(batch), policy.default_forward(batch.decisions())
    for name in ("logprob", "value"):
        expected = torch.stack([getattr(decision, name) for decision in decisions], 1)
        torch.testing.assert_close(getattr(whole, name), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(getattr(single, name), expected.view(-1, 1), atol=1e-5, rtol=0)


def test_the_memory_is_data():
    policy = SMALL.build(SPEC, seed=0)
    observation = observe(seeded(), 4)
    start = policy.predict_action_batch(observation, "eval")
    given = policy.predict_action_batch({**observation, **policy.initial_state(4)}, "eval")
    later = policy.predict_action_batch({**observation, **policy.next_state(start)}, "eval")
    assert torch.equal(start.action, given.action)
    assert not torch.equal(start.action, later.action)
    # what follows is h₁, h₂, and what was done
    assert torch.equal(policy.next_state(start)["policy_state"][:, -2:], start.action[:, 0])
    with pytest.raises(ShapeError, match=r"policy_state: expected \(4, 34\), found \(3, 34\)\. Give what initial_state"):
        policy.predict_action_batch({**observation, **policy.initial_state(3)})


def test_gradients_flow_back_through_time():
    policy = SMALL.build(SPEC, seed=0)
    batch = batch_of(*episode(policy, 3))
    image = policy.views[0].resnet.stem[0].weight

    def slope(part, column):
        policy.zero_grad()
        policy.default_forward(part).value[:, column].sum().backward()
        return image.grad.clone()

    full = slope(batch, 2)
    cut = slope(batch.decisions().rows(slice(2, None, 3)), 0)
    assert not torch.allclose(full, cut, rtol=1e-3)
    # columns of different episodes don't reach each other
    parted = batch_of(*(episode(policy, 1, seed=seed)[0] for seed in range(3)))
    torch.testing.assert_close(slope(parted, 2), slope(parted.decisions().rows(slice(2, None, 3)), 0))


def rounds(generator, rows):
    """The first picture, bright or dark, tells what the second action must be; the second picture is always dark."""
    bright = torch.randint(2, (rows,), generator=generator)
    constant = {"task_descriptions": np.full(rows, "go"), "states": torch.zeros(rows, 3)}
    first = (bright * 255).byte().view(-1, 1, 1, 1).expand(-1, 8, 8, 3)
    return bright, {"main_images": first, **constant}, {"main_images": torch.zeros_like(first), **constant}


def test_what_was_seen_first_is_remembered():
    policy, generator = SMALL.build(SPEC, seed=0), seeded()
    optimizer = torch.optim.Adam(policy.parameters(), 5e-3)
    for _ in range(35):
        bright, first, second = rounds(generator, 64)
        one = policy.predict_action_batch(first, generator=generator)
        two = policy.predict_action_batch({**second, **policy.next_state(one)}, generator=generator)
        reward = (2.0 * bright - 1.0) * two.action[:, 0, 0].clamp(-1, 1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
        logprob = policy.default_forward(batch_of(one, two)).logprob[:, 1]
        optimizer.zero_grad()
        (-(logprob - two.logprob).exp() * advantage).mean().backward()
        optimizer.step()
    bright, first, second = rounds(seeded(9), 128)
    memory = policy.next_state(policy.predict_action_batch(first, "eval"))
    action = policy.predict_action_batch({**second, **memory}, "eval").action[:, 0, 0]
    assert action[bright == 1].mean() - action[bright == 0].mean() > 0.5


def test_the_instruction_is_read():
    """The same picture, two instructions, two actions."""
    policy = SMALL.build(SPEC, seed=0)

    def expert(observation):
        left = torch.tensor([[-0.8, 0.0] if text == "go left" else [0.8, 0.0] for text in observation["task_descriptions"]])
        return left[:, None]

    first, last = clone(policy, observe, expert, steps=60, lr=1e-2)
    assert last < 0.2 * first


def test_padding_changes_nothing():
    encoder = InstructionEncoder(64, 8, 4)
    words = hash_words(["go to the red door", "go left"], vocab_size=64, max_words=9)
    together, known = encoder(words)
    assert known.tolist() == [[True] * 5, [True, True, False, False, False]]
    alone, _ = encoder(words[1:, :2])
    torch.testing.assert_close(together[1, :2], alone[0])


def test_attention_by_torch():
    attention = Attention(3, 4, 8)
    query, items = torch.randn(5, 3), torch.randn(5, 6, 4)
    known = torch.arange(6) < torch.tensor([1, 2, 6, 3, 4])[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        attention.query(query)[:, None], attention.key(items), attention.value(items), attn_mask=known[:, None]
    )
    torch.testing.assert_close(attention(query, items, known), expected[:, 0])
    torch.testing.assert_close(attention(query[:1], items[:1], known[:1]), attention.value(items)[:1, 0])


def test_words():
    """Numbers that must never change: weights are trained for them."""
    found = hash_words(["Put the BOWL, down", "", "a b c d e f"], vocab_size=8192, max_words=5)
    assert found.dtype == torch.int32
    assert found[0].tolist() == hash_words(["put  the bowl , down"], vocab_size=8192, max_words=5)[0].tolist()
    assert found[0].tolist() == [5247, 7147, 6506, 4923, 5822]
    assert found[1].tolist() == [0] * 5
    assert (found[2] > 0).all()
    assert hash_words(["x y z"] * 2, vocab_size=2, max_words=4).tolist() == [[1, 1, 1, 0]] * 2


@pytest.mark.parametrize("distribution", ["gaussian", "tanh_gaussian"])
def test_a_bandit_is_learned(distribution):
    config = dataclasses.replace(SMALL, distribution=distribution)
    assert learn(config.build(SPEC, seed=0), observe, iterations=10, rows=128) > 0.5


@pytest.mark.slow
def test_a_shuffled_bandit_is_not_learned():
    rises = [learn(SMALL.build(SPEC, seed=seed), observe, iterations=8, rows=128, shuffle=True, seed=seed) for seed in range(3)]
    assert abs(sum(rises) / 3) < 0.3


def test_what_it_refuses():
    for missing, message in (
        ("task_descriptions", r"cma: expected the observation 'task_descriptions', found \['main_images', 'states'\]"),
        ("main_images", "cma: expected images under one of main_images"),
    ):
        observation = {key: leaf for key, leaf in OBSERVATION.items() if key != missing}
        with pytest.raises(ConfigError, match=message):
            SMALL.build(dataclasses.replace(SPEC, observation=observation), seed=0)
    with pytest.raises(ConfigError, match="vocab_size: expected at least 2, found 1"):
        CMAPolicyConfig(vocab_size=1)


def test_the_configuration_is_registered():
    assert MODELS.build("cma", {"preset": "tiny"}, place="model") == CMAPolicyConfig(preset="tiny")

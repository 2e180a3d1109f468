"""A model of how recorded episodes go on: its loss by hand, what it sees, and that it learns."""

import math

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.rewards import LearnsReturns
from rlinf.models.reward_models import ReturnModelConfig, return_cross_entropy

STATES = {"states": ArraySpec(shape=(1,), dtype="float32")}
IMAGES = {"main_images": ArraySpec(shape=(16, 16, 3), dtype="uint8")}
WORDS = {"task_descriptions": ArraySpec(shape=(), dtype="str")}
SMALL = ReturnModelConfig(bins=11, preset="tiny", image_features=8, word_features=4, hidden_sizes=(16,))


def spec(**observation):
    return EnvSpec(observation=observation, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=9)


def test_the_loss_by_hand():
    """Three returns −1, −½ and 0, all as likely as each other, but for one logit."""
    logit = torch.zeros(2, 3)
    logit[1, 1] = math.log(2.0)
    found = return_cross_entropy(logit, torch.tensor([-1.0, -0.6]))
    assert found.total.item() == pytest.approx(math.log(3.0) + math.log(2.0))
    assert found.weight.item() == 2
    assert found.metrics["return/error"].sum == pytest.approx(0.5 + 0.1)
    half = return_cross_entropy(logit, torch.tensor([-1.0, -0.6]), mask=torch.tensor([True, False]))
    assert (half.total.item(), half.weight.item()) == (pytest.approx(math.log(3.0)), 1)


def test_what_lies_outside_counts_as_the_nearer_end():
    logit = torch.randn(2, 5)
    inside, outside = (return_cross_entropy(logit, torch.tensor(ends)).total for ends in ([-1.0, 0.0], [-7.0, 0.3]))
    assert inside == outside


@pytest.mark.parametrize("wrong", [{"returns": torch.zeros(3)}, {"returns": torch.zeros(2), "mask": torch.ones(2, 1)}])
def test_other_shapes_are_refused(wrong):
    with pytest.raises(ShapeError, match=f"return_cross_entropy\\({list(wrong)[-1]}\\)"):
        return_cross_entropy(torch.zeros(2, 3), **wrong)


def test_it_learns_what_is_left():
    model, states = SMALL.build(spec(**STATES), seed=0), torch.linspace(0.0, 40.0, 64)[:, None]
    assert isinstance(model, LearnsReturns)
    model.fit_statistics(action=None, states=states.numpy())
    returns, optimizer = states[:, 0] / 40.0 - 1.0, torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        found = model.return_loss({"states": states}, returns)
        optimizer.zero_grad()
        (found.total / found.weight).backward()
        optimizer.step()
    assert (model.state_values({"states": states}) - returns).abs().mean() < 0.05


@pytest.mark.parametrize("key", ["states", "main_images", "task_descriptions"])
def test_it_sees_all_that_there_is(key):
    model = SMALL.build(spec(**STATES, **IMAGES, **WORDS), seed=0)
    for parameter in model.head[-1].parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    seen = {"states": torch.ones(2, 1), "main_images": torch.zeros(2, 16, 16, 3, dtype=torch.uint8)}
    seen["task_descriptions"] = np.array(["push it", "push it"])
    other = {"states": torch.zeros(2, 1), "main_images": seen["main_images"] + 200, "task_descriptions": np.array(["lift it"] * 2)}
    assert not torch.equal(model.logits(seen), model.logits({**seen, key: other[key]}))


def test_weights_follow_from_the_seed():
    one, same, other = (SMALL.build(spec(**STATES, **WORDS), seed=seed).weights().tensors for seed in (1, 1, 2))
    assert all(torch.equal(tensor, same[name]) for name, tensor in one.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_what_it_could_not_see_is_refused():
    with pytest.raises(ConfigError, match="expected images or states"):
        SMALL.build(spec(**WORDS), seed=0)
    with pytest.raises(ConfigError, match="expected states \\[D\\]"):
        SMALL.build(spec(states=ArraySpec(shape=(2, 2), dtype="float32")), seed=0)
    with pytest.raises(ConfigError, match="bins"):
        ReturnModelConfig(bins=1)

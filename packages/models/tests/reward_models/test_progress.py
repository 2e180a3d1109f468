"""Critics of how far a task got between two states: their loss by hand, that they differ, and that they learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.rewards import LearnsOffsets, LearnsReturns
from rlinf.models.reward_models import ProgressModelConfig, offset_cross_entropy

STATES = {"states": ArraySpec(shape=(1,), dtype="float32")}
IMAGES = {"main_images": ArraySpec(shape=(16, 16, 3), dtype="uint8")}
WORDS = {"task_descriptions": ArraySpec(shape=(), dtype="str")}
SMALL = ProgressModelConfig(bins=11, ensemble=3, preset="tiny", image_features=8, word_features=4, hidden_sizes=(16,))


def spec(**observation):
    return EnvSpec(observation=observation, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=9)


def pairs(count, seed=0):
    """States at two times of an episode of 40 steps, and how much later the second one is."""
    first, second = 40.0 * torch.rand(2, count, 1, generator=torch.Generator().manual_seed(seed))
    return {"states": first}, {"states": second}, (second - first)[:, 0] / 40.0


def test_the_loss_by_hand():
    """Three offsets −1, 0 and 1, all as likely as each other, but for one logit."""
    logit = torch.zeros(2, 3)
    logit[1, 1] = math.log(2.0)
    found = offset_cross_entropy(logit, torch.tensor([1.0, -0.4]))
    assert found.total.item() == pytest.approx(math.log(3.0) + math.log(2.0))
    assert found.weight.item() == 2
    assert found.metrics["offset/error"].sum == pytest.approx(1.0 + 0.4)
    half = offset_cross_entropy(logit, torch.tensor([1.0, -0.4]), mask=torch.tensor([True, False]))
    assert (half.total.item(), half.weight.item()) == (pytest.approx(math.log(3.0)), 1)


@pytest.mark.parametrize("wrong", [{"offsets": torch.zeros(3)}, {"offsets": torch.zeros(2), "mask": torch.ones(2, 1)}])
def test_other_shapes_are_refused(wrong):
    with pytest.raises(ShapeError, match=f"offset_cross_entropy\\({list(wrong)[-1]}\\)"):
        offset_cross_entropy(torch.zeros(2, 3), **wrong)


def test_they_learn_how_far_apart_two_states_are():
    model = SMALL.build(spec(**STATES), seed=0)
    assert isinstance(model, LearnsOffsets)
    assert not isinstance(model, LearnsReturns)
    model.fit_statistics(action=None, states=np.linspace(0.0, 40.0, 9)[:, None])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(150):
        found = model.offset_loss(*pairs(128, step))
        optimizer.zero_grad()
        (found.total / found.weight).backward()
        optimizer.step()
    before, after, offsets = pairs(256, 1000)
    found = model.expected_offsets(before, after)
    assert found.shape == (3, 256)
    assert ((found - offsets).abs().mean(1) < 0.08).all()
    # Each of them errs in its own way.
    assert (found.std(0) > 0).all()


def test_critics_begin_with_weights_of_their_own_and_share_no_gradient():
    model = SMALL.build(spec(**STATES, **IMAGES, **WORDS), seed=0)
    first, *others = (dict(critic.named_parameters()) for critic in model.critics)
    drawn = [name for name, weight in first.items() if weight.ndim > 1]
    assert len({id(weight) for critic in (first, *others) for weight in critic.values()}) == 3 * len(first)
    for other in others:
        assert not any(torch.equal(first[name], other[name]) for name in drawn)
    seen = {"states": torch.ones(2, 1), "main_images": torch.zeros(2, 16, 16, 3, dtype=torch.uint8)}
    seen["task_descriptions"] = np.array(["push it", "push it"])
    model.logits(seen, seen)[0].sum().backward()
    assert first["head.0.weight"].grad.any()
    assert not any(weight.grad.any() for other in others for weight in other.values())


def test_the_loss_of_an_ensemble_is_the_mean_over_its_critics():
    model, (before, after, offsets) = SMALL.build(spec(**STATES), seed=3), pairs(5)
    mask = torch.tensor([True, True, False, True, True])
    found = model.offset_loss(before, after, offsets, mask=mask)
    alone = [offset_cross_entropy(logit, offsets, mask=mask) for logit in model.logits(before, after)]
    assert found.weight.item() == 4
    assert found.total.item() == pytest.approx(sum(each.total.item() for each in alone) / 3)
    for name, metric in found.metrics.items():
        assert metric.mean == pytest.approx(sum(each.metrics[name].mean for each in alone) / 3)


@pytest.mark.parametrize("key", ["states", "main_images", "task_descriptions"])
@pytest.mark.parametrize("second", [False, True])
def test_they_see_all_that_there_is_in_both_frames(key, second):
    model = SMALL.build(spec(**STATES, **IMAGES, **WORDS), seed=0)
    for critic in model.critics:
        critic.head[-1].weight.data.normal_(generator=torch.Generator().manual_seed(1))
    seen = {"states": torch.ones(2, 1), "main_images": torch.zeros(2, 16, 16, 3, dtype=torch.uint8)}
    seen["task_descriptions"] = np.array(["push it", "push it"])
    other = {"states": torch.zeros(2, 1), "main_images": seen["main_images"] + 200, "task_descriptions": np.array(["lift it"] * 2)}
    changed = {**seen, key: other[key]}
    same, found = model.logits(seen, seen), model.logits(*((seen, changed) if second else (changed, seen)))
    assert (same != found).flatten(1).any(1).all()


def test_weights_follow_from_the_seed():
    one, same, other = (SMALL.build(spec(**STATES, **WORDS), seed=seed).weights().tensors for seed in (1, 1, 2))
    assert all(torch.equal(tensor, same[name]) for name, tensor in one.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(("key", "value"), [("ensemble", 0), ("ensemble", -1), ("bins", 1), ("image_features", 0)])
def test_what_makes_no_critics_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key}: expected at least . found {value}|{key}.*{value}"):
        replace(SMALL, **{key: value})


def test_what_they_could_not_see_is_refused():
    with pytest.raises(ConfigError, match="steam_value_model: expected images or states"):
        SMALL.build(spec(**WORDS), seed=0)

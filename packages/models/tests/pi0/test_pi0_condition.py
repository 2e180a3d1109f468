"""π0 and π0.5 that are told, in words behind the task, which actions were good."""

import dataclasses

import pytest
import torch
from draws import batch_of

from rlinf.core.data.offline import LearnsLabels
from rlinf.core.errors import ConfigError
from rlinf.core.registry import MODELS
from rlinf.models.flow import UNCONDITIONAL, AdvantageCondition, condition_dropout
from rlinf.models.flow.conditioning import BAD, GOOD
from rlinf.models.pi0 import PI0PolicyConfig, PI05PolicyConfig
from rlinf.models.pi0.prompt import state_prompt, task_prompt, told_tasks

BOTH = pytest.mark.parametrize("config", [PI0PolicyConfig, PI05PolicyConfig], ids=["pi0", "pi05"])
ROOM = {"preset": "tiny", "num_action_chunks": 2, "max_token_length": 120}


def told(config, spec, **condition):
    return config(**ROOM, condition=AdvantageCondition(**condition)).build(spec, seed=0)


def plain(config, spec):
    return config(**ROOM).build(spec, seed=0)


def in_words(obs, label):
    """What is seen, with the words of a label in the task itself, for a policy that has no condition."""
    tasks = obs["task_descriptions"].tolist()
    return obs | {"task_descriptions": told_tasks(tasks, [label] * len(tasks))}


def labelled(obs, labels):
    return obs | {"advantage_labels": torch.tensor(labels)}


def velocity(policy, obs, tau=0.5):
    """At one point of the flow, as the policy acts."""
    context = policy.context(obs)
    prefix, state = policy.read(context)
    x = torch.randn(5, *policy.noise_shape, generator=torch.Generator().manual_seed(1))
    return policy._field(state, prefix, context)(x, torch.full((5,), tau))[0].detach()


def test_the_words_stand_behind_the_task():
    positive, negative, untold = told_tasks([" pick_up\nit ", "go", " go "], [GOOD, BAD, UNCONDITIONAL])
    assert task_prompt(positive) == "pick up it, Advantage: positive\n"
    assert state_prompt(negative, torch.zeros(1).numpy()) == "Task: go, Advantage: negative, State: 128;\nAction: "
    assert task_prompt(untold) == "go\n"


@BOTH
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.0])
def test_guidance_goes_from_all_data_to_what_was_good_and_beyond(config, scale, spec, obs):
    policy, other = told(config, spec, guidance_scale=scale), plain(config, spec)
    conditional, unconditional = velocity(other, in_words(obs, GOOD)), velocity(other, obs)
    assert (conditional - unconditional).abs().amax((1, 2)).min() > 1e-4
    found = velocity(policy, obs)
    torch.testing.assert_close(found, unconditional + scale * (conditional - unconditional), atol=1e-6, rtol=1e-5)
    if scale in (0.0, 1.0):
        assert torch.equal(found, conditional if scale else unconditional)


@BOTH
def test_it_acts_by_the_guided_flow_and_scores_by_it(config, spec, obs):
    policy, other = told(config, spec, guidance_scale=3.0), plain(config, spec)
    noise = torch.randn(5, *policy.noise_shape, generator=torch.Generator().manual_seed(2))
    again = policy.steer(obs, 0 * noise)
    torch.testing.assert_close(policy.predict_action_batch(obs, "eval").action, again, atol=1e-5, rtol=0.0)
    assert (again - other.steer(in_words(obs, GOOD), 0 * noise)).abs().max() > 1e-4
    decision = policy.predict_action_batch(obs, generator=torch.Generator().manual_seed(3))
    assert {"untold_tokens", "untold_token_masks"} <= set(decision.context)
    found = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(found.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0.0)


@BOTH
def test_without_guidance_one_pass_acts(config, spec, obs, counted_calls):
    policy = told(config, spec)
    calls = counted_calls(policy)
    found = policy.predict_action_batch(obs, "eval")
    assert calls == {"prefix": 1, "velocity": 4}
    assert "untold_tokens" not in found.context
    assert torch.equal(found.action, plain(config, spec).predict_action_batch(in_words(obs, GOOD), "eval").action)


@BOTH
def test_what_is_learned_is_told_unless_it_is_dropped(config, spec, obs):
    """Each row is learned as by a policy without a condition whose task has the words, or, if it is dropped, has none."""
    labels, prob = [1, 0, 1, 0, 1], 0.5
    policy, other = told(config, spec, unconditional_prob=prob, guidance_scale=2.0), plain(config, spec)
    action = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(4))
    draws = torch.Generator().manual_seed(5)
    found = policy.sft_loss(labelled(obs, labels), action, generator=draws)
    same = torch.Generator().manual_seed(5)
    kept = condition_dropout(torch.tensor(labels), prob=prob, generator=same).tolist()
    assert {UNCONDITIONAL, GOOD, BAD} == set(kept), "this seed shows all three"
    tasks = told_tasks(obs["task_descriptions"].tolist(), kept)
    expected = other.sft_loss(obs | {"task_descriptions": tasks}, action, generator=same)
    assert torch.equal(found.total, expected.total)


@BOTH
def test_without_labels_or_with_all_dropped_it_learns_what_all_data_did(config, spec, obs):
    action = torch.zeros(5, 2, 3)

    def loss(policy, seen):
        return policy.sft_loss(seen, action, generator=torch.Generator().manual_seed(6)).total.item()

    policy, other = told(config, spec, unconditional_prob=0.0), plain(config, spec)
    assert loss(policy, obs) == loss(other, obs)
    good, bad = (loss(policy, labelled(obs, [label] * 5)) for label in (GOOD, BAD))
    assert len({good, bad, loss(policy, obs)}) == 3
    dropped = told(config, spec, unconditional_prob=1.0)
    one, two = (loss(dropped, labelled(obs, [label] * 5)) for label in (GOOD, BAD))
    assert one == two


@BOTH
def test_it_says_that_it_can_be_told_and_has_no_other_weights(config, spec):
    without, having = config(**ROOM), config(**ROOM, condition=AdvantageCondition())
    assert isinstance(having, LearnsLabels)
    assert (without.conditioned, having.conditioned) == (False, True)
    assert without.traits == having.traits
    old, new = (each.build(spec, seed=0).state_dict() for each in (without, having))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)


@BOTH
def test_without_a_condition_labels_are_not_read(config, spec, obs):
    policy, draw = plain(config, spec), torch.Generator
    losses = [
        policy.sft_loss(seen, torch.zeros(5, 2, 3), generator=draw().manual_seed(7)).total
        for seen in (obs, labelled(obs, [1, 0, 1, 0, 1]))
    ]
    assert torch.equal(*losses)
    assert set(policy.context(obs)) == {"images", "image_masks", "states", "tokens", "token_masks"}


@pytest.mark.parametrize("name", ["cfg_model", "openpi_cfg"])
def test_the_name_of_another_system_says_what_stands_for_it(name):
    with pytest.raises(ConfigError, match=rf"no model named '{name}'.*'pi0' with condition: \{{\}} and data\.labels"):
        MODELS.build(name, {}, place="actor.model")


def test_its_words_need_room(spec, obs):
    tasks = obs["task_descriptions"].tolist()
    short = PI0PolicyConfig(preset="tiny", max_token_length=16)
    dataclasses.replace(short).check_tasks([tasks[0]], "actor.model", spec)
    with pytest.raises(ConfigError, match=r"actor\.model\.max_token_length: the prompt of '.* red, Advantage: \w+' has 28 tokens"):
        dataclasses.replace(short, condition=AdvantageCondition()).check_tasks([tasks[0]], "actor.model", spec)


@pytest.mark.parametrize("config", [PI0PolicyConfig, pytest.param(PI05PolicyConfig, marks=pytest.mark.slow)], ids=["pi0", "pi05"])
def test_it_acts_as_what_was_good(config, spec, obs):
    """Half of the data goes one way and half the other, whatever is seen; one of them is good."""
    policy, generator = told(config, spec), torch.Generator().manual_seed(8)
    optimizer = torch.optim.Adam([each for each in policy.parameters() if each.requires_grad], lr=2e-3)
    for step in range(60):
        labels = (step + torch.arange(5)) % 2
        action = (2 * labels - 1).float()[:, None, None].expand(5, 2, 3)
        found = policy.sft_loss(obs | {"advantage_labels": labels}, action, generator=generator)
        optimizer.zero_grad()
        (found.total / found.weight).backward()
        optimizer.step()
    moved = policy.predict_action_batch(obs, "eval").action
    assert moved.mean() > 0.5

"""A flow that is told which actions were good, by hand and as it learns."""

import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.models.flow import UNCONDITIONAL, AdvantageCondition, classifier_free, condition_dropout
from rlinf.models.flow.conditioning import one_hot_labels
from rlinf.models.flow_policy import FlowPolicyConfig

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(2,), dtype="float32")},
    action=ArraySpec(shape=(1,), dtype="float32"),
    max_episode_steps=9,
)


def constant(value):
    return lambda x, time: (torch.full_like(x, value), torch.full((len(x), 1, 1), value))


@pytest.mark.parametrize("prob", [0.0, 0.3, 1.0])
def test_a_dropped_label_says_nothing(prob):
    labels = torch.arange(400) % 2
    found = condition_dropout(labels, prob=prob, generator=torch.Generator().manual_seed(1))
    draw = torch.rand(400, generator=torch.Generator().manual_seed(1))
    assert found.tolist() == [-1 if u < prob else int(label) for label, u in zip(labels, draw, strict=True)]
    assert (found == UNCONDITIONAL).double().mean().item() == pytest.approx(prob, abs=0.06)


def test_a_network_is_shown_what_was_good_what_was_not_and_nothing():
    assert one_hot_labels(torch.tensor([1, 0, UNCONDITIONAL])).int().tolist() == [[1, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize(("scale", "expected"), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0), (2.0, 5.0)])
def test_guidance_goes_from_all_data_to_what_was_good_and_beyond(scale, expected):
    velocity, hidden = classifier_free(constant(3.0), constant(1.0), scale)(torch.zeros(2, 1, 1), torch.ones(2))
    assert velocity.flatten().tolist() == [expected] * 2
    assert hidden.flatten().tolist() == [3.0] * 2, "of the flow that is told"


def test_without_guidance_nobody_asks_what_all_data_did():
    told = constant(3.0)
    assert classifier_free(told, constant(1.0), 1.0) is told


def test_a_policy_that_is_told_acts_as_what_was_good():
    """Half of the data goes left and half goes right, whatever is seen; right is good."""
    config = FlowPolicyConfig(num_action_chunks=1, hidden_sizes=(32, 32), add_value_head=False, condition=AdvantageCondition())
    policy, seen = config.build(SPEC, seed=0), torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    labels, draw = torch.arange(64) % 2, torch.Generator().manual_seed(1)
    action = (labels.float() - 0.5)[:, None, None]
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(150):
        found = policy.sft_loss({"states": seen, "advantage_labels": labels}, action, generator=draw)
        optimizer.zero_grad()
        (found.total / found.weight).backward()
        optimizer.step()
    moved = policy.predict_action_batch({"states": seen}, "eval").action.flatten()
    assert (moved - 0.5).abs().mean() < 0.1
    away = FlowPolicyConfig(**{**_fields(config), "condition": AdvantageCondition(guidance_scale=0.0)}).build(SPEC, seed=0)
    away.load(policy.weights())
    assert away.predict_action_batch({"states": seen}, "eval").action.mean().abs() < 0.25, "as all data: neither way"


def _fields(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_without_labels_a_policy_learns_what_all_data_did():
    config = FlowPolicyConfig(num_action_chunks=1, condition=AdvantageCondition(unconditional_prob=0.0))
    policy = config.build(SPEC, seed=0)

    def loss(**labels):
        draw = torch.Generator().manual_seed(2)
        return policy.sft_loss({"states": torch.ones(4, 2), **labels}, torch.zeros(4, 1, 1), generator=draw).total.item()

    free, good, bad = loss(), *(loss(advantage_labels=torch.full((4,), label)) for label in (1, 0))
    assert len({free, good, bad}) == 3
    policy.velocity.trunk[0].weight.data[:, 2 : 2 + 2] = 0.0
    assert loss() == pytest.approx(free), "which is no label at all"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"unconditional_prob": 1.5}, "unconditional_prob"),
        ({"guidance_scale": -1.0}, "guidance_scale"),
        ({"unconditional_prob": 0.0, "guidance_scale": 2.0}, "unconditional_prob: expected more than 0, as guidance_scale"),
    ],
)
def test_what_is_out_of_range_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        AdvantageCondition(**fields)
    for scale in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="scale"):
            classifier_free(constant(0.0), constant(0.0), scale)

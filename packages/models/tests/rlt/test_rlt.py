import dataclasses

import numpy as np
import pytest
import torch
from draws import seeded

from rlinf.core import ArraySpec, EnvSpec, Trajectory
from rlinf.core.data.tree import tree_map
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.off_policy import HasActor, HasPrefixFeatures, HasQFunctions, HasReferenceAction, HasReplayFeatures, KeepsFeatures
from rlinf.models.rlt import RLTPolicyConfig
from rlinf.models.rlt._policy import _code_points

LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32)
ACTION = ArraySpec(shape=(2,), dtype="float32", low=LOW, high=HIGH)
SPEC = EnvSpec(
    observation={
        "states": ArraySpec(shape=(3,), dtype="float32"),
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    },
    action=ACTION,
    max_episode_steps=10,
)
BASE = {"model_type": "pi0", "preset": "tiny", "num_action_chunks": 3, "add_value_head": False}
SMALL = RLTPolicyConfig(base=BASE, num_action_chunks=2, token_size=8, token_width=16, hidden_sizes=(16,), q_hidden_sizes=(16,))
TASKS = ["move to the red block", "push", "grüße", ""]


@pytest.fixture(scope="module")
def policy():
    return SMALL.build(SPEC, seed=0)


def observations(rows=4, seed=0):
    g = seeded(seed)
    return {
        "states": torch.randn(rows, 3, generator=g),
        "main_images": torch.randint(0, 256, (rows, 32, 32, 3), generator=g, dtype=torch.uint8),
        "task_descriptions": np.array(TASKS[:rows]),
    }


def trajectory(policy, *, terminated, intervened=None, masked=False):
    """Four rows of two decisions, and what was seen before and after; texts are no part of it."""
    seen = [observations(seed=t) for t in range(3)]
    decided = Trajectory.of_decisions([policy.predict_action_batch(each, generator=seeded(1)) for each in seen[:2]])
    numbers = [{key: leaf for key, leaf in each.items() if key != "task_descriptions"} for each in seen]
    rows = dataclasses.replace(
        decided,
        terminated=torch.tensor([[False, end] for end in terminated]),
        observation={key: torch.stack([each[key] for each in numbers], 1) for key in numbers[0]},
    ).map(lambda leaf: leaf.numpy())
    mask = np.array([[True, not masked]] * 4)
    return seen, dataclasses.replace(rows, mask=mask, intervened=intervened)


def test_it_can_what_off_policy_learning_asks_for(policy):
    for protocol in (HasQFunctions, HasActor, HasReplayFeatures, HasReferenceAction):
        assert isinstance(policy, protocol)
    assert isinstance(SMALL, KeepsFeatures)
    assert isinstance(policy.base, HasPrefixFeatures)
    assert {name.partition(".")[0] for name in policy.actor_parameters()} == {"actor", "log_std"}
    assert {name.partition(".")[0] for name in policy.feature_parameters()} == {"base", "token"}
    assert not any(parameter.requires_grad for parameter in policy.base.parameters())


def test_it_begins_as_what_its_base_proposes(policy):
    """The first two steps of three, within the bounds."""
    seen = observations()
    proposed = policy.base.propose(seen)
    expected = proposed.action[:, :2].clamp(torch.tensor(LOW), torch.tensor(HIGH))
    torch.testing.assert_close(policy.predict_action_batch(seen, "eval").action, expected)
    assert proposed.features.shape[::2] == (4, policy.base.prefix_width)
    torch.testing.assert_close(policy.imitated_action(seen), expected)


def test_a_change_stays_within_its_bounds_and_comes_back(policy):
    changed = dataclasses.replace(SMALL, max_change=0.5).build(SPEC, seed=0)
    with torch.no_grad():
        changed.actor[-1].bias.fill_(9.0)
    seen = observations()
    before, after = policy.most_likely_action(seen), changed.most_likely_action(seen)
    half = torch.tensor(0.5 * (HIGH - LOW))
    torch.testing.assert_close(after, torch.minimum(before + 0.5 * half, torch.tensor(HIGH)), atol=1e-4, rtol=0)
    with torch.no_grad():
        changed.actor[-1].bias.fill_(1.0)
    with torch.no_grad():
        kept = {**changed._context(seen), "reference_action": torch.tensor(HIGH).expand(4, 2, 2)}
    changed.most_likely_action(kept).sum().backward()
    # At the bound of each action, and still there is a way back.
    assert (changed.actor[-1].bias.grad > 0).all()


def test_features_stand_for_observations(policy):
    seen = observations()
    _, rows = trajectory(policy, terminated=[False] * 4)
    kept = tree_map(lambda leaf: torch.as_tensor(leaf[:, 0]), policy.replay_features(rows))
    action = policy.predict_action_batch(seen, generator=seeded(1)).action
    for ours, theirs in (
        (policy.q_values(kept, action), policy.q_values(seen, action)),
        (policy.most_likely_action(kept), policy.most_likely_action(seen)),
        (policy.imitated_action(kept), policy.imitated_action(seen)),
    ):
        torch.testing.assert_close(ours, theirs)


def test_what_followed_is_asked_for_where_it_counts(policy):
    """The tasks of the rows are those that they were told before; a row that ended needs nothing."""
    ended = [False, True, False, False]
    seen, rows = trajectory(policy, terminated=ended)
    kept, last = policy.replay_features(rows), policy._context(seen[2])
    assert {key: leaf.shape[1:] for key, leaf in kept.items()} == {
        key: (3, *spec.shape) for key, spec in SMALL.kept_observation(SPEC).items()
    }
    for key in ("rl_token", "states", "reference_action"):
        np.testing.assert_allclose(kept[key][:, 1], rows.context[key][:, 1])
        np.testing.assert_allclose(kept[key][0, 2], last[key][0].numpy(), atol=1e-5)
        np.testing.assert_allclose(kept[key][2:, 2], last[key][2:].numpy(), atol=1e-5)
        assert not kept[key][1, 2].any()
    _, rows = trajectory(policy, terminated=ended, masked=True)
    kept, second = policy.replay_features(rows), policy._context(seen[1])
    np.testing.assert_allclose(kept["rl_token"][:, 1], second["rl_token"].numpy(), atol=1e-5)


def test_what_a_human_did_is_imitated(policy):
    acted = np.array([[False, True], [False, False], [True, False], [False, False]])
    _, rows = trajectory(policy, terminated=[True] * 4, intervened=acted)
    rows = dataclasses.replace(rows, action=np.full_like(rows.action, 0.625))
    kept = policy.replay_features(rows)
    same = kept["imitated_action"] == kept["reference_action"]
    assert same.all((2, 3))[:, :2].tolist() == (~acted).tolist()
    assert (kept["imitated_action"][:, :2][acted] == 0.625).all()


def test_the_actor_may_be_told_nothing(policy):
    changed = SMALL.build(SPEC, seed=0)
    torch.nn.init.normal_(changed.actor[-1].weight, generator=seeded(3))
    seen, hidden = observations(), torch.tensor([True, False, True, False])
    told = changed.without_reference(seen, hidden)
    middle = torch.tensor(0.5 * (LOW + HIGH))
    assert torch.equal(told["reference_action"][hidden], middle.expand(2, 2, 2))
    differs = (changed.most_likely_action(told) - changed.most_likely_action(seen)).abs().amax((1, 2)) > 1e-3
    assert differs.tolist() == hidden.tolist()
    # Critics are not told it, and what is to be imitated stays.
    action = torch.zeros(4, 2, 2)
    torch.testing.assert_close(changed.q_values(told, action), changed.q_values(seen, action))
    torch.testing.assert_close(changed.imitated_action(told), changed.imitated_action(seen))


def test_the_token_learns_to_keep_what_was_seen():
    policy, seen = SMALL.build(SPEC, seed=0), observations()
    optimizer = torch.optim.Adam(policy.token.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        output = policy.sft_loss(seen, np.zeros((4, 2, 2)))
        (output.total / output.weight).backward()
        optimizer.step()
        losses.append(output.metrics["sft_loss"].mean)
    assert losses[-1] < 0.7 * losses[0]
    assert {name.partition(".")[0] for name, p in policy.named_parameters() if p.grad is not None} == {"token"}
    half = policy.sft_loss(seen, np.zeros((4, 2, 2)), mask=np.array([[True, False], [True, True], [False] * 2, [False] * 2]))
    assert half.weight.item() == 2.0
    token = policy._context(seen)["rl_token"]
    torch.testing.assert_close(token.mean(1), torch.zeros(4), atol=1e-5, rtol=0)


def test_what_is_not_there_does_not_count(policy):
    found = policy.base.propose(observations())
    spoilt = torch.where(found.valid[..., None], found.features, 1e3)
    torch.testing.assert_close(policy.token(spoilt, found.valid), policy.token(found.features, found.valid))
    lost = [policy.token.reconstruction(each, found.valid) for each in (spoilt, found.features)]
    torch.testing.assert_close(*lost)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"distribution": "tanh_gaussian"}, "distribution"),
        ({"q_head": "crossq"}, "q_head"),
        ({"add_value_head": True}, "add_value_head"),
        ({"num_q_heads": 0}, "num_q_heads"),
        ({"max_change": 0.0}, "max_change"),
        ({"token_size": 0}, "token_size"),
    ],
)
def test_what_makes_no_sense_is_refused(change, key):
    with pytest.raises(ConfigError, match=key):
        dataclasses.replace(SMALL, **change)


def test_a_base_is_looked_at_before_it_is_built(tmp_path):
    SMALL.check("actor.model")
    traits = SMALL.traits
    assert (traits.chunk, traits.reference_action, traits.q_functions, traits.critic) == (2, True, True, False)
    assert traits.observations == ("main_images", "states", "task_descriptions")
    for base, message in (
        ({"model_type": "flow_policy"}, r"actor\.model\.base\.model_type: 'flow_policy' shows no features.*pi0 or pi05"),
        ({**BASE, "num_action_chunks": 1}, r"actor\.model\.num_action_chunks: a decision has 2 steps, and the base proposes 1"),
        ({**BASE, "ckpt_path": str(tmp_path / "nowhere")}, r"actor\.model\.base\.ckpt_path: .*nowhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(SMALL, base=base).check("actor.model")
    with pytest.raises(ConfigError, match=r"^base\.horizons"):
        dataclasses.replace(SMALL, base={**BASE, "horizons": 3})


def test_what_can_not_be_built_is_refused():
    with pytest.raises(ConfigError, match="shows no features"):
        dataclasses.replace(SMALL, base={"model_type": "mlp_policy"}).build(SPEC, seed=0)
    unbounded = dataclasses.replace(SPEC, action=ArraySpec(shape=(2,), dtype="float32"))
    with pytest.raises(ConfigError, match="within the bounds of actions, found none"):
        SMALL.build(unbounded, seed=0)
    with pytest.raises(ShapeError, match="256 characters, found 300"):
        _code_points(np.array(["x" * 300]))

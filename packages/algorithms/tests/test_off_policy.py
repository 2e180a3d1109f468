"""Off-policy algorithms by name, on a policy whose values are written down."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import off_policy_cases
import pytest
import torch
from off_policy_cases import Linear, expect_weighed, seeded
from torch import nn

from rlinf.algorithms.off_policy import DQN, SAC, TD3, CrossQ
from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Explores, Learner
from rlinf.core.registry import OBJECTIVES
from rlinf.core.replay import Transitions

BOX = ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -2.0, np.float32), high=np.full(1, 2.0, np.float32))
FOUR = ArraySpec(shape=(), dtype="int64", low=np.array(3), high=np.array(6))


class Valued(Linear):
    """The value of choice i is vᵢ s."""

    def __init__(self, mean: float, weights: list[float], values: list[float]) -> None:
        super().__init__(mean, weights)
        self.values = nn.Parameter(torch.tensor(values))

    def action_values(self, env_obs: Any) -> Any:
        return env_obs["states"] * self.values


def batch(action: Any = None) -> Transitions[Any]:
    return off_policy_cases.batch(action=torch.zeros(3, 1, 1) if action is None else action)


def learner(policy: Any, target: Any, spec: ArraySpec = BOX, **free: float) -> Learner:
    parameters = {name: nn.Parameter(torch.tensor(value)) for name, value in free.items()}
    return Learner(policy=policy, target=target, parameters=parameters, action=spec)


@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "crossq"])
def test_each_has_its_name(name: str) -> None:
    objective = OBJECTIVES.build(name, {}, place="algorithm")
    assert set(objective.due(1)) <= {*objective.trained(Normalized(0.0, [1.0])), *objective.parameters()}


def test_who_asks_for_droq_is_told_all_that_makes_it() -> None:
    with pytest.raises(ConfigError, match=r"actor\.model\.q_layer_norm: true, actor\.model\.q_dropout: 0\.01 and utd: 20"):
        OBJECTIVES.get("droq", place="algorithm.loss_type")


def test_sac_judges_by_target_critics_and_fresh_actions() -> None:
    policy, target = Linear(0.5, [1.0, 2.0]), Linear(9.0, [3.0, 4.0])
    given = learner(policy, target, alpha=math.log(0.2))
    output = SAC().loss("critic", given, batch(), generator=seeded())
    with torch.no_grad():
        action, logprob = policy.sample_action(batch().observation_next, generator=seeded())
        value = target.q_values(batch().observation_next, action).amin(1) - 0.2 * logprob
        follows = batch().discount * value * torch.tensor([1.0, 1.0, 0.0])
        error = policy.q_values(batch().observation, batch().action) - (batch().reward + follows)[:, None]
    torch.testing.assert_close(output.total, 0.5 * error.square().sum())
    assert output.weight == 3
    output.total.backward()
    assert policy.actor.grad is None
    assert target.q_head.grad is None


def test_sac_trains_the_actor_on_its_own_critics_and_the_temperature_on_the_entropy() -> None:
    policy, given = Linear(0.5, [1.0, 2.0]), None
    given = learner(policy, Linear(9.0, [3.0, 4.0]), alpha=math.log(0.2))
    action, logprob = policy.sample_action(batch().observation, generator=seeded())
    expected = (0.2 * logprob - policy.q_values(batch().observation, action).amin(1)).sum()
    torch.testing.assert_close(SAC().loss("actor", given, batch(), generator=seeded()).total, expected)
    # The entropy is to be that of one number: −1.
    expected = (-0.2 * (logprob.detach() - 1.0)).sum()
    torch.testing.assert_close(SAC().loss("alpha", given, batch(), generator=seeded()).total, expected)
    fixed = SAC(auto_entropy_tuning=False, initial_alpha=0.0)
    assert fixed.parameters() == {}
    assert "alpha" not in fixed.due(1)
    action, _ = policy.sample_action(batch().observation, generator=seeded())
    expected = -policy.q_values(batch().observation, action).amin(1).sum()
    torch.testing.assert_close(fixed.loss("actor", given, batch(), generator=seeded()).total, expected)


def test_the_temperature_learns_from_the_actions_of_the_actors_step() -> None:
    policy = Linear(0.5, [1.0, 2.0])
    given, rows = learner(policy, Linear(9.0, [3.0, 4.0]), alpha=math.log(0.2)), batch()
    SAC().loss("actor", given, rows, generator=seeded())
    _, logprob = policy.sample_action(rows.observation, generator=seeded())
    other = torch.Generator().manual_seed(8)
    found = SAC().loss("alpha", given, rows, generator=other)
    torch.testing.assert_close(found.total, (-0.2 * (logprob.detach() - 1.0)).sum())
    # Of other rows nothing is known, so that their actions are drawn.
    drawn = SAC().loss("alpha", given, batch(), generator=other)
    assert not torch.isclose(drawn.total, found.total)


def test_redq_asks_a_few_critics() -> None:
    policy, target = Linear(0.5, [1.0] * 8), Linear(0.0, [float(n) for n in range(1, 9)])
    for size, fewest in ((None, 1), (1, 3)):
        found: set[float] = set()
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            given = learner(policy, target, alpha=-50.0)
            critics = SAC(critic_subsample_size=size).loss("critic", given, batch(), generator=generator)
            # The action that was drawn counts, too: what is left is the weight of the critic that was asked.
            again = torch.Generator().manual_seed(seed)
            action, _ = policy.sample_action(batch().observation_next, generator=again)
            seen = (
                (batch().observation_next["states"] + action[:, 0])[:, 0].detach()
                * batch().discount
                * torch.tensor([1.0, 1.0, 0.0])
            )
            wanted: Any = critics.metrics["target"]
            found.add(round(float((wanted.sum - batch().reward.sum()) / seen.sum()), 3))
        assert found <= {float(n) for n in range(1, 9)}
        assert len(found) >= fewest


class Normalized(Linear):
    """Its critics subtract what they say on average of a batch, in training."""

    def batch_q_values(self, env_obs: Any, action: Any) -> Any:
        q = self.q_values(env_obs, action)
        return q - q.mean(0)


def test_crossq_judges_both_ends_in_one_pass() -> None:
    policy, target = Normalized(0.5, [1.0, 2.0]), Normalized(9.0, [30.0, 40.0])
    given = learner(policy, target, alpha=math.log(0.2))
    output = CrossQ().loss("critic", given, batch(), generator=seeded())
    with torch.no_grad():
        action, logprob = policy.sample_action(batch().observation_next, generator=seeded())
        ends = [
            (batch().observation["states"] + batch().action[:, 0]) * policy.q_head,
            (batch().observation_next["states"] + action[:, 0]) * policy.q_head,
        ]
        now, after = (torch.cat(ends) - torch.cat(ends).mean(0)).chunk(2)
        follows = batch().discount * (after.amin(1) - 0.2 * logprob) * torch.tensor([1.0, 1.0, 0.0])
        error = now - (batch().reward + follows)[:, None]
    torch.testing.assert_close(output.total, 0.5 * error.square().sum())
    output.total.backward()
    assert policy.q_head.grad is not None
    assert policy.actor.grad is None
    # The actor climbs what the critics say by what they remember, not by this batch.
    action, logprob = policy.sample_action(batch().observation, generator=seeded())
    expected = (0.2 * logprob - policy.q_values(batch().observation, action).amin(1)).sum()
    torch.testing.assert_close(CrossQ().loss("actor", given, batch(), generator=seeded()).total, expected)


def test_crossq_refuses_critics_without_the_statistics_of_a_batch() -> None:
    assert CrossQ().trained(Normalized(0.5, [1.0])) == {"critic": ["q_head"], "actor": ["actor"]}
    with pytest.raises(ConfigError, match=r"actor.model.model_type: the critics of Linear can't normalise by the statistics"):
        CrossQ().trained(Linear(0.5, [1.0]))


def test_crossq_has_no_targets_and_a_slow_actor() -> None:
    assert CrossQ().moved({"w": torch.zeros(1)}, {"w": torch.ones(1)}, 1) is None
    assert [CrossQ().due(update) for update in (1, 2, 3)] == [("critic",), ("critic",), ("critic", "actor", "alpha")]


class Drops(Linear):
    """Says of itself how often its critics were asked with the generator of the update."""

    def dropped_q_values(self, env_obs: Any, action: Any, *, generator: Any = None) -> Any:
        assert generator is not None
        return self.q_values(env_obs, action) * 10


def test_sac_drops_units_wherever_it_asks_critics() -> None:
    """As DroQ does: those that learn, those of the target, and those that the actor climbs."""
    policy, target = Drops(0.5, [1.0, 2.0]), Drops(0.5, [3.0, 4.0])
    tenfold = Linear(0.5, [10.0, 20.0]), Linear(0.5, [30.0, 40.0])
    for part in ("critic", "actor"):
        found = SAC().loss(part, learner(policy, target, alpha=0.0), batch(), generator=seeded())
        torch.testing.assert_close(found.total, SAC().loss(part, learner(*tenfold, alpha=0.0), batch(), generator=seeded()).total)


def test_critics_count_transitions_by_their_weights() -> None:
    policy, target = Normalized(0.5, [1.0, 2.0]), Normalized(0.5, [3.0, 4.0])
    given = learner(policy, target, alpha=0.0)
    for objective in (SAC(), CrossQ()):
        critic = partial(objective.loss, "critic", given)
        expect_weighed(lambda weight, loss=critic: loss(replace(batch(), weight=weight), generator=seeded()))


def test_td3_judges_by_the_target_actor_with_clipped_noise() -> None:
    policy, target = Linear(9.0, [1.0, 2.0]), Linear(0.1, [3.0, 4.0])
    given = learner(policy, target)
    output = TD3(target_noise=0.0).loss("critic", given, batch(), generator=seeded())
    value = torch.tensor([5.0 * 1.1, 6.0 * 1.1, 0.0]) * 3.0
    wanted = batch().reward + batch().discount * value
    error = policy.q_values(batch().observation, batch().action) - wanted[:, None]
    torch.testing.assert_close(output.total, 0.5 * error.square().sum())
    # Noise of at most 0.01 of half the range, 2, moves the value by at most 0.02 · 3.
    noisy = TD3(target_noise=5.0, noise_clip=0.01).loss("critic", given, batch(), generator=seeded())
    assert noisy.total != output.total
    moved = noisy.metrics["target"].mean - output.metrics["target"].mean
    assert abs(moved) <= 0.06 * float(batch().discount.sum()) / 3
    actor = TD3().loss("actor", given, batch(), generator=None).total
    torch.testing.assert_close(
        actor, -policy.q_values(batch().observation, policy.most_likely_action(batch().observation))[:, 0].sum()
    )


def test_td3_delays_actor_and_targets() -> None:
    assert [TD3().due(update) for update in (1, 2, 3)] == [("critic",), ("critic", "actor"), ("critic",)]
    target, online = {"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}
    assert TD3(tau=0.25).moved(target, online, 1) is None
    assert TD3(tau=0.25).moved(target, online, 2) == {"w": torch.tensor([0.25])}


def test_targets_move_when_they_are_told_to() -> None:
    target, online = {"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}
    for objective in (SAC(tau=0.25, target_update_freq=3), DQN(tau=0.25, target_update_freq=3)):
        found = [objective.moved(target, online, update) for update in (1, 2, 3, 4, 6)]
        assert found == [None, None, {"w": torch.tensor([0.25])}, None, {"w": torch.tensor([0.25])}]


def test_dqn_lets_one_network_choose_and_the_other_judge() -> None:
    policy, target = Valued(0.0, [0.0], [1.0, 3.0, 2.0, 0.0]), Valued(0.0, [0.0], [10.0, 20.0, 30.0, 40.0])
    given, taken = learner(policy, target, FOUR), torch.tensor([[3], [5], [6]])
    values = torch.tensor([1.0 * 1, 2.0 * 2, 3.0 * 0])
    for double, judged in ((True, 20.0), (False, 40.0)):
        wanted = batch().reward + batch().discount * torch.tensor([5.0, 6.0, 0.0]) * judged
        output = DQN(double_q=double, huber_delta=None).loss("critic", given, batch(taken), generator=None)
        torch.testing.assert_close(output.total, 0.5 * (values - wanted).square().sum())


def test_dqn_explores_less_and_less() -> None:
    dqn = DQN(initial_epsilon=1.0, final_epsilon=0.2, epsilon_steps=100)
    assert [dqn.epsilon(n) for n in (0, 50, 100, 900)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert isinstance(dqn, Explores)
    action = torch.full((20_000, 1), 3)
    for decisions, share in ((0, 1.0), (100, 0.2)):
        explored = dqn.explored(action, FOUR, decisions=decisions, generator=seeded())
        assert explored.dtype == action.dtype
        assert sorted(set(explored.flatten().tolist())) == [3, 4, 5, 6]
        # A random action is the greedy one in a quarter of all cases.
        assert float((explored != 3).float().mean()) == pytest.approx(0.75 * share, abs=0.015)


def test_td3_explores_within_the_bounds() -> None:
    action = torch.zeros(20_000, 1, 1)
    explored = TD3(exploration_noise=0.1).explored(action, BOX, decisions=0, generator=seeded())
    assert float(explored.std()) == pytest.approx(0.2, rel=0.05)
    edge = TD3(exploration_noise=1.0).explored(action + 2.0, BOX, decisions=0, generator=seeded())
    assert float(edge.max()) == 2.0
    assert float(edge.min()) >= -2.0


def test_frozen_parameters_belong_to_no_part() -> None:
    policy = Valued(0.0, [1.0], [0.0])
    policy.values.requires_grad_(False)
    assert SAC().trained(policy) == {"critic": ["q_head"], "actor": ["actor"]}
    assert DQN().trained(policy) == {"critic": ["actor", "q_head"]}
    policy.actor.requires_grad_(False)
    assert SAC().trained(policy) == {"critic": ["q_head"], "actor": []}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="tau"):
        SAC(tau=0.0)
    with pytest.raises(ConfigError, match="critic_actor_ratio"):
        SAC(critic_actor_ratio=0)
    with pytest.raises(ConfigError, match="final_epsilon"):
        DQN(initial_epsilon=0.1, final_epsilon=0.2)
    with pytest.raises(ConfigError, match="expected actions with bounds"):
        TD3().explored(torch.zeros(1, 1, 1), ArraySpec(shape=(1,), dtype="float32"), decisions=0, generator=None)
    still = replace(BOX, low=np.full(1, 2.0, np.float32))
    with pytest.raises(ConfigError, match="expected bounds of actions between which there is room, found 2 … 2 for number 0"):
        TD3().loss("critic", learner(Linear(0.5, [1.0]), Linear(0.5, [1.0]), still), batch(), generator=seeded())
    with pytest.raises(ConfigError, match="does not say which parameters are its actor's"):
        SAC().trained(nn.Linear(1, 1))


def test_a_target_is_asked_and_not_the_policy() -> None:
    """Under another target the critic's loss is another one, for each of them."""
    policy = Valued(0.5, [1.0, 2.0], [1.0, 3.0, 2.0, 0.0])
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.q_head.mul_(2.0)
        other.values.mul_(2.0)
    for objective, spec, taken in ((SAC(), BOX, None), (TD3(), BOX, None), (DQN(), FOUR, torch.tensor([[3], [4], [5]]))):
        found = {
            objective.loss("critic", learner(policy, target, spec, alpha=0.0), batch(taken), generator=seeded()).total.item()
            for target in (policy, other)
        }
        assert len(found) == 2

"""RLT by name: what an actor learns that changes what another policy proposes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import torch
from off_policy_cases import NEXT, Linear, S, batch, expect_weighed, seeded
from torch import nn

from rlinf.algorithms.objectives import linear_weight, reference_dropout
from rlinf.algorithms.off_policy import RLTTD3, TD3
from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Explores, Learner, LearnsFromReference

BOX = ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -2.0, np.float32), high=np.full(1, 2.0, np.float32))
PROPOSED = torch.tensor([1.0, -0.5, 0.25])


class Refines(Linear):
    """a = m s + ã, where it is told ã; its features are those of a part that nobody trains."""

    version = 0

    def __init__(self, mean: float = 0.5) -> None:
        super().__init__(mean, [1.0, 2.0])
        self.eyes = nn.Parameter(torch.ones(1))

    def feature_parameters(self) -> list[str]:
        return ["eyes"]

    def replay_features(self, rows: Any) -> Any:
        raise NotImplementedError

    def most_likely_action(self, env_obs: Any) -> Any:
        return super().most_likely_action(env_obs) + env_obs["reference"]

    def without_reference(self, env_obs: Any, hidden: Any) -> Any:
        return {**env_obs, "reference": torch.where(hidden[:, None, None], 0.0, env_obs["reference"])}

    def imitated_action(self, env_obs: Any) -> Any:
        return env_obs["imitated"]


def shown(**fields: Any) -> Any:
    """The batch of the other tests with a proposal, of which a human did something else in the last row."""
    told = {"reference": PROPOSED[:, None, None], "imitated": torch.tensor([1.0, -0.5, 2.0])[:, None, None]}
    given = batch(**fields)
    return replace(
        given,
        observation={**given.observation, **told},
        observation_next={"states": NEXT[:, None], "reference": torch.zeros(3, 1, 1), "imitated": torch.zeros(3, 1, 1)},
    )


def learner(policy: Any, target: Any = None) -> Learner:
    return Learner(policy=policy, target=target or policy, parameters={}, action=BOX)


def test_the_actor_by_hand() -> None:
    """Q₁ = s + a; distances are in halves of the range, which is 4 wide."""
    action = 0.5 * S + PROPOSED
    wanted = -2.0 * (S + action) + 3.0 * ((action - torch.tensor([1.0, -0.5, 2.0])) / 2.0).square()
    objective = RLTTD3(reference_dropout=0.0, q_weight=2.0, bc_weight=3.0)
    output = objective.loss("actor", learner(Refines()), shown(), generator=seeded())
    torch.testing.assert_close(output.total, wanted.sum())
    without = RLTTD3(reference_dropout=1.0, q_weight=0.0).loss("actor", learner(Refines()), shown(), generator=seeded())
    torch.testing.assert_close(without.total, ((0.5 * S - torch.tensor([1.0, -0.5, 2.0])) / 2.0).square().sum())


def test_the_actor_stays_near_for_a_while() -> None:
    objective = RLTTD3(reference_dropout=0.0, q_weight=0.0, bc_weight=2.0, final_bc_weight=0.5, bc_weight_updates=10)
    found: list[float] = []
    for version in (0, 5, 10, 99):
        policy = Refines()
        policy.version = version
        found.append(objective.loss("actor", learner(policy), shown(), generator=seeded()).total.item())
    assert np.array(found) / found[0] == pytest.approx([1.0, 0.625, 0.25, 0.25])
    assert linear_weight(7, initial=0.4, final=None, updates=1) == 0.4
    for update, final in itertools.product((0, 1, 7, 8, 20), (0.0, 1.5, None)):
        wanted = reference.linear_weight(update, initial=0.4, final=final, updates=8)
        assert linear_weight(update, initial=0.4, final=final, updates=8) == pytest.approx(wanted)


def test_critics_learn_as_those_of_td3() -> None:
    """The target actor is told what is proposed in the next state."""
    policy, target = Refines(), Refines(0.1)
    ours, theirs = (each.loss("critic", learner(policy, target), shown(), generator=seeded()) for each in (RLTTD3(), TD3()))
    torch.testing.assert_close(ours.total, theirs.total)
    expect_weighed(lambda weight: RLTTD3(target_noise=0.0).loss("critic", learner(policy), shown(weight=weight), generator=None))


def test_what_a_replay_buffer_keeps_is_made_by_what_nobody_trains() -> None:
    assert RLTTD3().trained(Refines()) == {"critic": ["q_head"], "actor": ["actor"]}
    assert TD3().trained(Refines()) == {"critic": ["q_head"], "actor": ["actor"]}
    assert isinstance(RLTTD3(), LearnsFromReference)
    assert isinstance(RLTTD3(), Explores)
    assert not isinstance(TD3(), LearnsFromReference)


def test_the_proposal_is_dropped_at_random() -> None:
    rows = torch.zeros(20_000, 2)
    assert reference_dropout(rows, prob=0.3, generator=seeded()).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert not reference_dropout(rows, prob=0.0, generator=seeded()).any()
    assert reference_dropout(rows, prob=1.0, generator=None).all()
    assert torch.equal(*(reference_dropout(rows, prob=0.5, generator=seeded()) for _ in range(2)))
    draw = torch.rand(20_000, generator=seeded(), dtype=torch.float64)
    wanted = reference.reference_dropout(rows.tolist(), prob=0.5, draw=draw.tolist())
    assert reference_dropout(rows, prob=0.5, generator=seeded()).tolist() == wanted


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"reference_dropout": 1.5}, "reference_dropout"),
        ({"q_weight": -1.0}, "q_weight"),
        ({"final_bc_weight": -1.0}, "final_bc_weight"),
        ({"bc_weight_updates": 0}, "bc_weight_updates"),
        ({"critic_actor_ratio": 0}, "critic_actor_ratio"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        RLTTD3(**fields)
    with pytest.raises(ConfigError, match="prob"):
        reference_dropout(S, prob=2.0, generator=None)
    with pytest.raises(ConfigError, match="update"):
        linear_weight(-1, initial=1.0, final=None, updates=1)


def test_an_actor_that_is_told_what_to_do_learns_what_is_better() -> None:
    """A bandit: the proposal is 0.2 short of what pays most. Imitation alone stays there; the critics lead beyond it."""
    generator = seeded()
    proposal = torch.rand(256, generator=generator) - 0.5

    class Shifts(nn.Module):
        version = 0

        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Parameter(torch.zeros(1))

        def most_likely_action(self, env_obs: Any) -> Any:
            return (env_obs["reference"] + self.actor)[:, None, None]

        def without_reference(self, env_obs: Any, hidden: Any) -> Any:
            return env_obs

        def imitated_action(self, env_obs: Any) -> Any:
            return env_obs["reference"][:, None, None]

        def q_values(self, env_obs: Any, action: Any) -> Any:
            return -4.0 * (action[:, 0] - env_obs["reference"][:, None] - 0.2).square()

    found: list[float] = []
    for weight in (0.0, 1.0):
        policy = Shifts()
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
        rows = replace(batch(), reward=torch.zeros(256), observation={"reference": proposal})
        for _ in range(60):
            optimizer.zero_grad()
            output = RLTTD3(q_weight=weight, bc_weight=0.1).loss("actor", learner(policy), rows, generator=generator)
            (output.total / output.weight).backward()
            optimizer.step()
        found.append(policy.actor.item())
    assert found == pytest.approx([0.0, 0.2], abs=0.02)

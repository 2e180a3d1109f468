"""IQL and AWAC by name: one update of each beside the formulas of their papers, written by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_cases import GAMMA, GOES_ON, NEXT, A, Linear, R, S, batch, expect_weighed, seeded
from torch import nn

from rlinf.algorithms.off_policy import AWAC, IQL
from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import Learner
from rlinf.core.registry import OBJECTIVES
from rlinf.core.replay import within_bounds

BOX = ArraySpec(shape=(1,), dtype="float32", low=np.full(1, -2.0, np.float32), high=np.full(1, 2.0, np.float32))


class Scored(Linear):
    """a ~ N(m s, 1); V(s) = v s."""

    def __init__(self, mean: float, value: float, weights: list[float]) -> None:
        super().__init__(mean, weights)
        self.critic = nn.Parameter(torch.tensor(value))

    def value_parameters(self) -> list[str]:
        return ["critic"]

    def state_value(self, env_obs: Any) -> Any:
        return self.critic * env_obs["states"][:, 0]

    def action_logprob(self, env_obs: Any, action: Any) -> Any:
        return torch.distributions.Normal(self.actor * env_obs["states"][:, 0], 1.0).log_prob(action[:, 0, 0])


def learner(policy: Any, target: Any) -> Learner:
    return Learner(policy=policy, target=target, parameters={}, action=BOX)


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_each_has_its_name_and_trains_every_parameter_once(name: str) -> None:
    objective = OBJECTIVES.build(name, {}, place="algorithm")
    trained = objective.trained(Scored(0.0, 0.0, [1.0]))
    assert set(objective.due(1)) == set(trained)
    names = [parameter for part in trained.values() for parameter in part]
    assert len(names) == len(set(names))
    assert set(names) == {"actor", "critic", "q_head"} if name == "iql" else {"actor", "q_head"}


def test_a_frozen_value_function_learns_nothing() -> None:
    policy = Scored(0.5, 1.0, [1.0])
    policy.critic.requires_grad_(False)
    assert IQL().trained(policy) == {"value": [], "critic": ["q_head"], "actor": ["actor"]}


def test_iql_values_states_by_an_expectile_of_the_target_critics() -> None:
    """Kostrikov et al. (2021), eq. 5."""
    policy, target = Scored(0.5, 0.3, [1.0, 2.0]), Scored(9.0, 9.0, [3.0, -1.0])
    output = IQL(expectile=0.9).loss("value", learner(policy, target), batch(), generator=None)
    u = torch.minimum(3.0 * (S + A), -1.0 * (S + A)) - 0.3 * S
    expected = (torch.where(u < 0, 0.1, 0.9) * u.square()).sum()
    torch.testing.assert_close(output.total, expected)
    output.total.backward()
    found = policy.critic.grad
    assert found is not None
    torch.testing.assert_close(found, (-2 * torch.where(u < 0, 0.1, 0.9) * u * S).sum())
    assert policy.q_head.grad is None
    assert target.q_head.grad is None


def test_iql_critics_learn_the_value_of_what_followed() -> None:
    """Eq. 6; V is that of the weights that learn, and γᵏ that of the transition."""
    policy, target = Scored(0.5, 0.3, [1.0, 2.0]), Scored(9.0, 9.0, [3.0, 4.0])
    output = IQL().loss("critic", learner(policy, target), batch(), generator=None)
    y = R + GAMMA * GOES_ON * 0.3 * NEXT
    error = torch.stack([1.0 * (S + A) - y, 2.0 * (S + A) - y])
    torch.testing.assert_close(output.total, 0.5 * error.square().sum())
    output.total.backward()
    assert policy.critic.grad is None
    always = IQL(bootstrap_type="always").loss("critic", learner(policy, target), batch(), generator=None)
    assert float(always.total.detach()) != pytest.approx(float(output.total.detach()))


def test_iql_imitates_what_was_better_than_expected() -> None:
    """Eq. 7, with the clip of the authors' implementation."""
    policy, target = Scored(0.5, 0.3, [1.0, 2.0]), Scored(9.0, 9.0, [0.4, 0.6])
    output = IQL(beta=2.0, max_weight=3.0).loss("actor", learner(policy, target), batch(), generator=None)
    advantage = 0.4 * (S + A) - 0.3 * S
    weight = (2.0 * advantage).exp().clamp(max=3.0)
    assert (weight == 3.0).sum() == 1
    logprob = torch.distributions.Normal(0.5 * S, 1.0).log_prob(A)
    torch.testing.assert_close(output.total, -(weight * logprob).sum())
    output.total.backward()
    found = policy.actor.grad
    assert found is not None
    torch.testing.assert_close(found, -(weight * (A - 0.5 * S) * S).sum())
    assert policy.critic.grad is None
    assert policy.q_head.grad is None


def test_without_beta_iql_is_behaviour_cloning() -> None:
    policy = Scored(0.5, 0.3, [1.0, 2.0])
    output = IQL(beta=0.0).loss("actor", learner(policy, copy.deepcopy(policy)), batch(), generator=None)
    torch.testing.assert_close(output.total, -torch.distributions.Normal(0.5 * S, 1.0).log_prob(A).sum())


def test_awac_critics_follow_the_policy_and_not_the_data() -> None:
    """Nair et al. (2020), eq. 12: the target of policy evaluation, under target critics; actions as they are executed."""
    policy, target = Scored(0.5, 0.0, [1.0, 2.0]), Scored(9.0, 9.0, [3.0, 4.0])
    output = AWAC().loss("critic", learner(policy, target), batch(), generator=seeded())
    noise = torch.randn(3, 1, generator=seeded())[:, 0]
    action = (0.5 * NEXT + noise).clamp(-2, 2)
    assert (0.5 * NEXT + noise > 2).any()
    y = R + GAMMA * GOES_ON * 3.0 * (NEXT + action)
    error = torch.stack([1.0 * (S + A) - y, 2.0 * (S + A) - y])
    torch.testing.assert_close(output.total, 0.5 * error.square().sum())
    output.total.backward()
    assert policy.actor.grad is None


def test_actions_are_judged_at_the_one_bound_that_there_is() -> None:
    half = ArraySpec(shape=(1,), dtype="float32", high=np.zeros(1, np.float32))
    policy, target = Scored(0.0, 0.0, [0.0]), Scored(0.0, 0.0, [1.0])
    given = replace(learner(policy, target), action=half)
    output = AWAC().loss("critic", given, batch(), generator=seeded())
    action = torch.randn(3, 1, generator=seeded())[:, 0].clamp(max=0)
    torch.testing.assert_close(output.total, 0.5 * (R + GAMMA * GOES_ON * (NEXT + action)).square().sum())
    np.testing.assert_array_equal(within_bounds(np.array([[-1.0], [1.0]], np.float32), half), [[-1.0], [0.0]])


def test_awac_imitates_by_the_advantage_over_its_own_actions() -> None:
    """Eq. 13, without Z."""
    policy, target = Scored(0.1, 0.0, [0.2, 0.3]), Scored(9.0, 9.0, [3.0, 4.0])
    output = AWAC(temperature=0.5, value_samples=2).loss("actor", learner(policy, target), batch(), generator=seeded())
    generator = seeded()
    own = [(0.1 * S + torch.randn(3, 1, generator=generator)[:, 0]).clamp(-2, 2) for _ in range(2)]
    value = sum(torch.minimum(0.2 * (S + a), 0.3 * (S + a)) for a in own) / 2
    advantage = torch.minimum(0.2 * (S + A), 0.3 * (S + A)) - value
    weight = (advantage / 0.5).exp()
    torch.testing.assert_close(output.total, -(weight * torch.distributions.Normal(0.1 * S, 1.0).log_prob(A)).sum())
    output.total.backward()
    assert policy.q_head.grad is None
    clipped = AWAC(temperature=0.5, value_samples=2, max_weight=1.0).loss(
        "actor", learner(policy, target), batch(), generator=seeded()
    )
    torch.testing.assert_close(
        clipped.total, -(weight.clamp(max=1) * policy.action_logprob({"states": S[:, None]}, A[:, None, None])).sum()
    )


@pytest.mark.parametrize(("objective", "part"), [(IQL(), "value"), (IQL(), "critic"), (AWAC(), "critic")])
def test_weights_of_a_buffer_count_where_values_are_learned(objective: Any, part: str) -> None:
    given = learner(Scored(0.5, 0.3, [1.0, 2.0]), Scored(0.5, 0.3, [1.0, 2.0]))
    expect_weighed(lambda weight: objective.loss(part, given, batch(weight), generator=seeded()))


def test_targets_move_after_every_update() -> None:
    for objective in (IQL(tau=0.25), AWAC(tau=0.25)):
        found = objective.moved({"q": torch.tensor(4.0)}, {"q": torch.tensor(8.0)}, 1)
        assert found is not None
        assert float(found["q"]) == 5.0


def test_policies_that_can_not_learn_so_are_refused() -> None:
    class Judged(nn.Module):
        def actor_parameters(self) -> list[str]:
            return []

        def most_likely_action(self, env_obs: Any) -> Any: ...

    class Unvalued(Scored):
        def value_parameters(self) -> list[str]:
            return []

    with pytest.raises(ConfigError, match=r"actor\.model\.model_type: Judged can't say how likely"):
        AWAC().trained(Judged())
    with pytest.raises(ConfigError, match=r"actor\.model\.add_value_head: expected true"):
        IQL().trained(Unvalued(0.0, 0.0, [1.0]))


@pytest.mark.parametrize(
    ("make", "fields", "key"),
    [
        (IQL, {"expectile": 0.0}, "expectile"),
        (IQL, {"expectile": 1.0}, "expectile"),
        (IQL, {"beta": -1.0}, "beta"),
        (IQL, {"max_weight": 0.0}, "max_weight"),
        (IQL, {"tau": 0.0}, "tau"),
        (AWAC, {"temperature": 0.0}, "temperature"),
        (AWAC, {"value_samples": 0}, "value_samples"),
        (AWAC, {"huber_delta": 0.0}, "huber_delta"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, fields: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(**fields)
    assert refused.value.place == key

"""What prioritised replay needs of algorithms that learn values: losses that count weights, and the error of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlinf.algorithms.off_policy import DQN, TD3
from rlinf.core.data import ArraySpec
from rlinf.core.off_policy import Learner
from rlinf.core.replay import Transitions

ONE = np.ones(1, np.float32)
BOX = ArraySpec(shape=(1,), dtype="float32", low=-ONE, high=ONE)
TWO = ArraySpec(shape=(), dtype="int64", low=np.array(0), high=np.array(1))


class Judges(nn.Module):
    """Q(s, a) = s + a for both critics, a = 0; the choices are worth s and 2 s."""

    def most_likely_action(self, env_obs: Any) -> Any:
        return torch.zeros(len(env_obs["states"]), 1, 1)

    def q_values(self, env_obs: Any, action: Any) -> Any:
        return (env_obs["states"] + action[:, 0]).repeat(1, 2)

    def action_values(self, env_obs: Any) -> Any:
        return env_obs["states"] * torch.tensor([1.0, 2.0])


def batch(action: Any, weight: list[float] | None) -> Transitions[Any]:
    return Transitions(
        observation={"states": torch.tensor([[1.0], [2.0], [3.0]])},
        action=action,
        reward=torch.tensor([1.0, 5.0, -3.0]),
        observation_next={"states": torch.zeros(3, 1)},
        terminated=torch.zeros(3, dtype=torch.bool),
        discount=torch.ones(3),
        weight=None if weight is None else torch.tensor(weight),
    )


@pytest.mark.parametrize(
    ("objective", "spec", "action", "each"),
    [
        # Two critics: ½ δ² each, of δ = 0, 3, 6.
        (TD3(target_noise=0.0), BOX, torch.zeros(3, 1, 1), [0.0, 9.0, 36.0]),
        (DQN(huber_delta=None), TWO, torch.zeros(3, 1, dtype=torch.int64), [0.0, 4.5, 18.0]),
    ],
)
def test_a_critic_counts_weights_and_tells_errors(objective: Any, spec: ArraySpec, action: Any, each: list[float]) -> None:
    given = Learner(policy=Judges(), target=Judges(), parameters={}, action=spec)
    for weight, total in ((None, sum(each)), ([1.0, 0.5, 0.25], 0.5 * each[1] + 0.25 * each[2])):
        output = objective.loss("critic", given, batch(action, weight), generator=None)
        assert output.total.item() == total
        assert output.weight.item() == 3
        assert output.td_error.tolist() == [0.0, 3.0, 6.0]

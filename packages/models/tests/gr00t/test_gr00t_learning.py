"""The bandit: reward is the mean of the first number of each action; PPO must raise it, and must not with shuffled advantages."""

import pytest
import torch
from bandits import gain
from draws import seeded

from rlinf.models.flow import FlowSampling

SETTINGS = {"max_prompt_tokens": 11, "num_action_chunks": 2}


def gained(policy, *, rows, shuffle):
    generator = seeded(1)
    states = {"states": torch.randn(rows, 7, generator=generator).numpy()}
    return gain(policy, states, generator, lr=3e-4, iterations=8, shuffle=shuffle)


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(FlowSampling(), id="flow_sde"),
        pytest.param(
            FlowSampling(noise_method="flow_noise", noise_logvar_range=(0.2, 0.5)), id="flow_noise", marks=pytest.mark.slow
        ),
    ],
)
def test_ppo_learns_the_bandit(build, sampling):
    assert gained(build("states", sampling=sampling, **SETTINGS), rows=48, shuffle=False) > 1.0


def test_ppo_does_not_learn_from_shuffled_advantages(build):
    assert abs(gained(build("states", **SETTINGS), rows=96, shuffle=True)) < 0.5

"""A bandit of seconds: the reward is the first dimension of the action. Both heads must learn it; nothing is learned from noise."""

from __future__ import annotations

from typing import Any

import pytest
from bandits import improve
from draws import seeded


def learn(policy: Any, observe: Any, *, shuffle: bool) -> float:
    """By how much PPO raises the mean reward; the actions lie in [−1, 1]."""
    options = {"lr": 1e-3, "iterations": 10, "updates": 2, "shuffle": shuffle}
    rewards = improve(policy, lambda iteration: observe(48, iteration), seeded(0), **options)
    return rewards[-1] - rewards[0]


@pytest.mark.parametrize("head", ["discrete", "l1"])
def test_a_bandit_is_learned(build: Any, observe: Any, head: str) -> None:
    policy = build(action_head=head, n_action_bins=16, logprob_type="action_level", add_value_head=False)
    assert learn(policy, observe, shuffle=False) > 0.3


@pytest.mark.slow
def test_nothing_is_learned_from_shuffled_advantages(build: Any, observe: Any) -> None:
    policy = build(n_action_bins=16, logprob_type="action_level", add_value_head=False)
    assert learn(policy, observe, shuffle=True) < 0.2

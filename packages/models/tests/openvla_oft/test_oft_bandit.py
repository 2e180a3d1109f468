"""A bandit of seconds: the reward is the first dimension of the action. Both heads must learn it; nothing is learned from noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

ROWS, ITERATIONS = 48, 10


def learn(policy: Any, observe: Any, as_batch: Any, *, shuffle: bool) -> float:
    """By how much PPO raises the mean reward; the actions lie in [−1, 1]."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=1e-3)
    rewards: list[float] = []
    for iteration in range(ITERATIONS):
        decision = policy.predict_action_batch(observe(ROWS, iteration), generator=generator)
        reward = decision.action[..., 0].mean(-1)
        rewards.append(reward.mean().item())
        advantage = (reward - reward.mean()) / reward.std()
        if shuffle:
            advantage = advantage[torch.randperm(ROWS, generator=generator)]
        for _ in range(2):
            found = policy.default_forward(as_batch([decision])).logprob[:, 0]
            ratio = (found - decision.logprob).exp()
            wide = advantage.view(-1, *[1] * (ratio.dim() - 1))
            loss = -torch.minimum(ratio * wide, ratio.clamp(0.8, 1.2) * wide).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return rewards[-1] - rewards[0]


@pytest.mark.parametrize("head", ["discrete", "l1"])
def test_a_bandit_is_learned(build: Any, observe: Any, as_batch: Any, head: str) -> None:
    policy = build(action_head=head, n_action_bins=16, logprob_type="action_level", add_value_head=False)
    gain = learn(policy, observe, as_batch, shuffle=False)
    assert gain > 0.3


def test_nothing_is_learned_from_shuffled_advantages(build: Any, observe: Any, as_batch: Any) -> None:
    policy = build(n_action_bins=16, logprob_type="action_level", add_value_head=False)
    gain = learn(policy, observe, as_batch, shuffle=True)
    assert gain < 0.2

"""Learning checks of seconds, shared by the tests of small policies."""

from types import SimpleNamespace

import pytest
import torch
from draws import batch_of, seeded


def learn(policy, observe, *, iterations=15, rows=256, lr=0.01, shuffle=False, seed=0):
    """PPO on a bandit whose reward is the first dimension of the action: how much the most likely action rose.

    Args:
        policy: what learns.
        observe: makes observations of `rows` rows from a generator.
        iterations: of sampling, each with four updates.
        rows: decisions in an iteration.
        lr: of Adam.
        shuffle: whether advantages are given to the wrong decisions: then nothing must be learned.
        seed: of everything.
    """
    generator = seeded(seed)
    test = observe(seeded(99), 64)
    before = first_action(policy, test)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr)
    for _ in range(iterations):
        decision = policy.predict_action_batch(observe(generator, rows), generator=generator)
        reward = decision.action[..., 0].mean(-1)
        advantage = (reward - reward.mean()) / reward.std()
        if shuffle:
            advantage = advantage[torch.randperm(rows, generator=generator)]
        batch = batch_of(decision, advantage)
        for _ in range(4):
            change = policy.default_forward(batch).logprob[:, 0] - decision.logprob
            ratio = change.reshape(rows, -1).sum(-1).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return first_action(policy, test) - before


def first_action(policy, observation):
    return policy.predict_action_batch(observation, "eval").action[..., 0].mean().item()


def clone(policy, observe, expert, *, steps=100, rows=128, lr=3e-3, seed=0):
    """Behaviour cloning: the loss before and after, per step of a chunk."""
    generator = seeded(seed)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr)
    losses = []
    for _ in range(steps):
        observation = observe(generator, rows)
        output = policy.sft_loss(observation, expert(observation))
        loss = output.total / output.weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], sum(losses[-5:]) / 5


@pytest.fixture
def bandit():
    """The functions of this file, which tests can't import."""
    return SimpleNamespace(batch_of=batch_of, clone=clone, first_action=first_action, learn=learn, seeded=seeded)

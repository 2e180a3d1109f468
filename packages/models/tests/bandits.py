"""Learning checks of seconds: policies on a bandit whose reward is the first number of each action, and behaviour cloning."""

import torch
from draws import batch_of, seeded


def ppo(policy, decision, advantage):
    """The clipped objective on the ratio of whole decisions."""
    change = policy.default_forward(batch_of(decision)).logprob[:, 0] - decision.logprob
    ratio = change.reshape(len(advantage), -1).sum(-1).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def improve(policy, observe, generator, *, lr, iterations=15, updates=4, shuffle=False, loss=ppo):
    """Learns from decisions; the mean reward of each iteration.

    Args:
        policy: what learns.
        observe: makes the observations of an iteration, given its number.
        generator: the source of decisions, and of what `shuffle` does.
        lr: of Adam.
        iterations: of sampling.
        updates: in each iteration.
        shuffle: whether advantages are given to the wrong decisions: then nothing must be learned.
        loss: of policy, decision and advantages.
    """
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr)
    rewards = []
    for iteration in range(iterations):
        decision = policy.predict_action_batch(observe(iteration), generator=generator)
        reward = decision.action[..., 0].mean(-1)
        rewards.append(reward.mean().item())
        advantage = (reward - reward.mean()) / reward.std()
        if shuffle:
            advantage = advantage[torch.randperm(len(advantage), generator=generator)]
        for _ in range(updates):
            value = loss(policy, decision, advantage)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return rewards


def first_action(policy, observation):
    """The mean first number of the most likely actions."""
    return policy.predict_action_batch(observation, "eval").action[..., 0].mean().item()


def gain(policy, observation, generator, **options):
    """How much the most likely action for observations rises while the policy learns on them; arguments as for `improve`."""
    before = first_action(policy, observation)
    improve(policy, lambda _: observation, generator, **options)
    return first_action(policy, observation) - before


def learn(policy, observe, *, iterations=15, rows=256, lr=0.01, shuffle=False, seed=0):
    """How much the most likely action rises while the policy learns on new observations in each iteration.

    Args:
        policy: what learns.
        observe: makes observations of `rows` rows from a generator.
        iterations: as for `improve`.
        rows: decisions in an iteration.
        lr: of Adam.
        shuffle: as for `improve`.
        seed: of everything.
    """
    generator, test = seeded(seed), observe(seeded(99), 64)
    before = first_action(policy, test)
    improve(policy, lambda _: observe(generator, rows), generator, lr=lr, iterations=iterations, shuffle=shuffle)
    return first_action(policy, test) - before


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

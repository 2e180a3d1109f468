"""The bandit: reward is the mean of the first number of each action; PPO must raise it, and must not with shuffled advantages."""

import pytest
import torch

from rlinf.models.flow import FlowSampling

ROWS, ITERATIONS, EPOCHS = 96, 8, 4


def gain(policy, contract, *, control):
    """By how much the mean of a_x rises in mode "eval"."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    env_obs = {"states": torch.randn(ROWS, 7, generator=generator).numpy()}
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=3e-4)

    def success():
        return policy.predict_action_batch(env_obs, "eval").action[..., 0].mean().item()

    before = success()
    for _ in range(ITERATIONS):
        decision = policy.predict_action_batch(env_obs, generator=generator)
        batch = contract.batch([decision])
        reward = decision.action[..., 0].mean(-1)
        advantage = (reward - reward.mean()) / reward.std()
        advantage = advantage[torch.randperm(ROWS, generator=generator)] if control else advantage
        for _ in range(EPOCHS):
            ratio = (policy.default_forward(batch).logprob[:, 0] - decision.logprob).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return success() - before


@pytest.mark.parametrize(
    "sampling",
    [FlowSampling(), FlowSampling(noise_method="flow_noise", noise_logvar_range=(0.2, 0.5))],
    ids=["flow_sde", "flow_noise"],
)
def test_ppo_learns_the_bandit(build, examine, sampling):
    policy = build("states", sampling=sampling, max_prompt_tokens=11, num_action_chunks=2)
    assert gain(policy, examine(policy, "states"), control=False) > 1.0


def test_ppo_does_not_learn_from_shuffled_advantages(build, examine):
    policy = build("states", max_prompt_tokens=11, num_action_chunks=2)
    assert abs(gain(policy, examine(policy, "states"), control=True)) < 0.5

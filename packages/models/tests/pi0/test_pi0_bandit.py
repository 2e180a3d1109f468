"""The shortest proof that gradients of log-probabilities point the right way: a reward for moving along x, one decision."""

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.models.flow import FlowSampling
from rlinf.models.pi0 import PI0PolicyConfig, PI05PolicyConfig

SPEC = EnvSpec(
    observation={
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "states": ArraySpec(shape=(2,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U8"),
    },
    action=ArraySpec(shape=(2,), dtype="float32"),
    max_episode_steps=1,
)
ROWS = 96
OBS = {
    "main_images": np.full((ROWS, 32, 32, 3), 120, np.uint8),
    "states": np.zeros((ROWS, 2), np.float32),
    "task_descriptions": np.array(["go"] * ROWS),
}


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        (PI0PolicyConfig, FlowSampling()),
        (PI0PolicyConfig, FlowSampling(noise_method="flow_noise", joint_logprob=True, joint_reduction="mean")),
        (PI05PolicyConfig, FlowSampling()),
    ],
    ids=["pi0 sde", "pi0 noise", "pi05 sde"],
)
def test_a_bandit_is_learnt(config, sampling, batch_of):
    sizes = {"horizon": 2, "num_action_chunks": 2, "max_action_dim": 2, "max_token_length": 32}
    policy = config(preset="tiny", sampling=sampling, add_value_head=False, **sizes).build(SPEC, seed=0)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def mean():
        return float(policy.predict_action_batch({key: leaf[:1] for key, leaf in OBS.items()}, "eval").action[..., 0].mean())

    before = mean()
    for _ in range(15):
        decision = policy.predict_action_batch(OBS, generator=generator)
        reward = decision.action[..., 0].mean(1)
        advantage = (reward - reward.mean()) / reward.std()
        for _ in range(2):
            logprob = policy.default_forward(batch_of(decision)).logprob[:, 0]
            ratio = (logprob - decision.logprob).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert mean() - before >= 0.5

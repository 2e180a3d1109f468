"""The shortest proof that gradients of log-probabilities point the right way: a reward for moving along x, one decision."""

import numpy as np
import pytest
from bandits import gain
from draws import seeded

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
ROWS = 32
OBS = {
    "main_images": np.full((ROWS, 32, 32, 3), 120, np.uint8),
    "states": np.zeros((ROWS, 2), np.float32),
    "task_descriptions": np.array(["go"] * ROWS),
}


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        pytest.param(PI0PolicyConfig, FlowSampling(), marks=pytest.mark.slow),
        (PI0PolicyConfig, FlowSampling(noise_method="flow_noise", joint_logprob=True, joint_reduction="mean")),
        (PI05PolicyConfig, FlowSampling()),
    ],
    ids=["pi0 sde", "pi0 noise", "pi05 sde"],
)
def test_a_bandit_is_learnt(config, sampling):
    sizes = {"horizon": 2, "num_action_chunks": 2, "max_action_dim": 2, "max_token_length": 32}
    policy = config(preset="tiny", sampling=sampling, add_value_head=False, **sizes).build(SPEC, seed=0)
    assert gain(policy, OBS, seeded(0), lr=1e-3, iterations=12, updates=2) >= 0.5

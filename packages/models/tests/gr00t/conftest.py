"""What the tests of GR00T share."""

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.gr00t import GR00TPolicyConfig

K, A = 3, 3
STATES = EnvSpec(
    observation={"states": ArraySpec(shape=(7,), dtype="float32")},
    action=ArraySpec(shape=(A,), dtype="float32"),
    max_episode_steps=8,
)
SIGHT = EnvSpec(
    observation={
        "main_images": ArraySpec(shape=(40, 48, 3), dtype="uint8"),
        "wrist_images": ArraySpec(shape=(2, 32, 32, 3), dtype="uint8"),
        "states": ArraySpec(shape=(7,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U80"),
    },
    action=ArraySpec(shape=(A,), dtype="float32", low=np.array([-2, -1, 0], np.float32), high=np.array([2, 1, 1], np.float32)),
    max_episode_steps=8,
)

SPECS = {"states": STATES, "sight": SIGHT}
"""Environments by what a policy is told."""


@pytest.fixture(scope="session")
def build():
    def make(spec="sight", **fields):
        fields = {"preset": "tiny", "num_action_chunks": K, "value_hidden": (16,), "max_prompt_tokens": 24} | fields
        return GR00TPolicyConfig(**fields).build(SPECS[spec], seed=0)

    return make


@pytest.fixture(scope="session")
def examine():
    def make(policy, spec="sight", **fields):
        def generator(seed):
            return torch.Generator().manual_seed(seed)

        return PolicyContract(policy=policy, spec=SPECS[spec], as_array=torch.as_tensor, generator=generator, **fields)

    return make

import numpy as np
import pytest

from rlinf.core import ArraySpec, EnvSpec
from rlinf.models.openvla import OpenVLAPolicyConfig

TASKS = ["move to the block that is red", "Open the drawer", "push the puck to the goal that is far away"]


@pytest.fixture(scope="session")
def spec():
    observation = {
        "main_images": ArraySpec(shape=(32, 32, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
        "states": ArraySpec(shape=(4,), dtype="float32"),
    }
    low, high = np.array([-1.0, -0.5, 0.0], np.float32), np.array([1.0, 0.5, 2.0], np.float32)
    return EnvSpec(observation=observation, action=ArraySpec(shape=(3,), dtype="float32", low=low, high=high), max_episode_steps=8)


@pytest.fixture(scope="session")
def observe():
    def make(rows=3, seed=0, size=32):
        images = np.random.default_rng(seed).integers(0, 256, (rows, size, size, 3)).astype(np.uint8)
        return {"main_images": images, "task_descriptions": np.array([TASKS[i % 3] for i in range(rows)])}

    return make


@pytest.fixture(scope="session")
def build(spec):
    def make(seed=0, **fields):
        return OpenVLAPolicyConfig(**{"preset": "tiny", "n_action_bins": 32, **fields}).build(spec, seed=seed)

    return make

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec

TASKS = ["move to the block that is red", "push the puck", "open_it", " close\nit ", "a"]


def camera(views=None, size=32):
    return ArraySpec(shape=(size, size, 3) if views is None else (views, size, size, 3), dtype="uint8")


@pytest.fixture(scope="session")
def spec():
    return EnvSpec(
        observation={
            "main_images": camera(),
            "wrist_images": camera(),
            "states": ArraySpec(shape=(7,), dtype="float32"),
            "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
        },
        action=ArraySpec(shape=(3,), dtype="float32", low=-np.ones(3, np.float32), high=np.full(3, 2.0, np.float32)),
        max_episode_steps=10,
    )


@pytest.fixture
def obs():
    random = np.random.default_rng(3)
    return {
        "main_images": random.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8),
        "wrist_images": random.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8),
        "states": random.uniform(-1, 1, (5, 7)).astype(np.float32),
        "task_descriptions": np.array(TASKS),
    }


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.fixture
def counted_calls(monkeypatch):
    """Counts from now on how often a policy's network reads a prefix, and asks for a velocity."""

    def count(policy):
        calls = {"prefix": 0, "velocity": 0}
        for name in calls:
            original = getattr(policy.network, name)

            def counted(*args, _name=name, _original=original):
                calls[_name] += 1
                return _original(*args)

            monkeypatch.setattr(policy.network, name, counted)
        return calls

    return count

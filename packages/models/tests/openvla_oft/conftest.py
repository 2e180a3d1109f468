"""What the tests of OpenVLA-OFT share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig

TASKS = ("push", "move to the block that is red", "pick up the bowl and put it on the plate", "open it")
K, A = 4, 2


@pytest.fixture(scope="session")
def spec() -> EnvSpec:
    picture, bound = ArraySpec(shape=(32, 32, 3), dtype="uint8"), np.array([1.0, 2.0], np.float32)
    return EnvSpec(
        observation={
            "main_images": picture,
            "wrist_images": picture,
            "extra_view_images": ArraySpec(shape=(2, 24, 24, 3), dtype="uint8"),
            "states": ArraySpec(shape=(3,), dtype="float32"),
            "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
        },
        action=ArraySpec(shape=(A,), dtype="float32", low=-bound, high=bound),
        max_episode_steps=8,
    )


@pytest.fixture(scope="session")
def build(spec: EnvSpec) -> Callable[..., Any]:
    """A tiny policy, its weights all drawn, so that no part is silent."""

    def make(*, stir: bool = True, **fields: Any) -> Any:
        policy = OpenVLAOFTPolicyConfig(preset="tiny", num_action_chunks=K, **fields).build(spec, seed=0)
        if stir and policy.film is not None:
            g = torch.Generator().manual_seed(7)
            for parameter in policy.film.parameters():
                torch.nn.init.normal_(parameter, std=0.1, generator=g)
        return policy

    return make


@pytest.fixture(scope="session")
def observe() -> Callable[..., dict[str, Any]]:
    """Random observations; prompts of different lengths in one batch."""

    def make(rows: int, seed: int = 0) -> dict[str, Any]:
        g = np.random.default_rng(seed)

        def picture(*shape: int) -> Any:
            return g.integers(0, 256, (rows, *shape, 3), dtype=np.uint8)

        return {
            "main_images": picture(32, 32),
            "wrist_images": picture(32, 32),
            "extra_view_images": picture(2, 24, 24),
            "states": g.standard_normal((rows, 3)).astype(np.float32),
            "task_descriptions": np.array([TASKS[(row + seed) % len(TASKS)] for row in range(rows)]),
        }

    return make

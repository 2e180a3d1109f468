"""Weights that depend on a seed and on nothing else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def seeded_weights(seed: int) -> Generator[None]:
    """Layers that are made inside get weights drawn from `seed`; torch's global generator is left as it was.

    Args:
        seed: decides the weights.
    """
    random: Any = torch.random
    with random.fork_rng(devices=[]):
        random.manual_seed(seed)
        yield

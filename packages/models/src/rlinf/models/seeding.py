"""Weights that depend on a seed and on nothing else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def seeded_weights(seed: int) -> Generator[None]:
    """Layers that are made inside get weights drawn on the CPU from `seed`; torch's global generators are left as they were.

    Args:
        seed: decides the weights.
    """
    # Not torch.manual_seed, which seeds the generators of all accelerators, too.
    generator: Any = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)

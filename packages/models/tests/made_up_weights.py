"""Made-up weights, from names and shapes alone.

Only NumPy is needed, so that a reference implementation in an environment of its own can be given the very same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def made_up_weights(shapes: Mapping[str, tuple[int, ...]], *, scale: float = 1.0) -> dict[str, NDArray[np.float32]]:
    """Weights of a plausible size: matrices of variance scale² / fan-in, scales of normalisations around 1, small biases.

    Args:
        shapes: by name; each tensor depends on its own name and shape only.
        scale: of the matrices.
    """
    return {name: _tensor(name, tuple(shape), scale) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    # Philox by name: default_rng may stand for another generator in another NumPy.
    noise = np.random.Generator(np.random.Philox(seed)).standard_normal(shape)
    if len(shape) > 1:
        return (noise * (scale / np.sqrt(np.prod(shape[1:])))).astype(np.float32)
    centre = 1.0 if name.endswith("weight") else 0.0
    return (centre + 0.1 * noise).astype(np.float32)

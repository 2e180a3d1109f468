"""The initial states that LIBERO ships. Only imported when they are read, as it imports torch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def read_states(path: Path) -> NDArray[np.float64]:
    """`[I, D]`, read without running anything that the file may hold."""
    # NumPy moved its rebuilding function; the file names it by its former path.
    rebuild: Any = importlib.import_module("numpy._core.multiarray")._reconstruct
    plain: list[Any] = [(rebuild, "numpy.core.multiarray._reconstruct"), np.ndarray, np.dtype, np.dtypes.Float64DType]
    with torch.serialization.safe_globals(plain):
        return np.asarray(torch.load(path, weights_only=True), np.float64)

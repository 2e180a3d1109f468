"""The initial states that LIBERO ships. Only imported when they are read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.libero.libero import package_folder

if TYPE_CHECKING:
    from rlinf.envs.libero.libero import Libero


def initial_states(config: Libero, name: str, place: str = "env") -> NDArray[np.float64]:
    """The initial states of a task, `[I, D]`: those that LIBERO ships, or of them those that the configuration names.

    Raises:
        ConfigError: it names one that there is not.
    """
    shipped = _shipped(config.suite, name)
    wrong = [number for number in config.init_ids or () if number >= len(shipped)]
    if wrong:
        problem = f"the task '{name}' has no initial state {wrong[0]}"
        raise ConfigError(f"{place}.init_ids", problem, f"They are numbered 0 to {len(shipped) - 1}.")
    return shipped if config.init_ids is None else shipped[list(config.init_ids)]


def _shipped(suite: str, name: str) -> NDArray[np.float64]:
    """Read without running anything that the file may hold."""
    path = package_folder() / "init_files" / suite / f"{name}.pruned_init"
    # NumPy moved its rebuilding function; the file names it by its former path.
    rebuild: Any = importlib.import_module("numpy._core.multiarray")._reconstruct
    plain: list[Any] = [(rebuild, "numpy.core.multiarray._reconstruct"), np.ndarray, np.dtype, np.dtypes.Float64DType]
    with torch.serialization.safe_globals(plain):
        return np.asarray(torch.load(path, weights_only=True), np.float64)

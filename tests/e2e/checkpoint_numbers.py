"""What a checkpoint holds in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]


def numbers_of(folder: Path) -> dict[str, Any]:
    """All arrays of a checkpoint, by file and name."""
    tensors = {f"{file.name}/{n}": a for file in sorted(folder.rglob("*.safetensors")) for n, a in load_file(file).items()}
    return {**tensors, **{f"{file.parent.name}/{file.name}": np.load(file) for file in sorted(folder.rglob("*.npy"))}}

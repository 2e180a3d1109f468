"""Weights that a run starts from, such as those of a policy that was trained on demonstrations."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from rlinf.core.data import Weights
from rlinf.core.errors import CheckpointError

_NAMES = ("model.safetensors", "full_weights.pt", "actor/model.safetensors", "actor/model_state_dict/full_weights.pt")
_KEY = "runner.ckpt_path"


def find_weights(path: str) -> Path:
    """The file of weights that `runner.ckpt_path` names, itself or by its folder.

    Raises:
        CheckpointError: there is none.
    """
    given = Path(path).expanduser()
    candidates = [given / name for name in _NAMES] if given.is_dir() else [given]
    for file in candidates:
        if file.is_file() and file.suffix in (".safetensors", ".pt"):
            return file
    raise CheckpointError(_KEY, f"no weights at '{path}'", f"Name a .safetensors or .pt file, or a folder with one of {_NAMES}.")


def read_weights(file: Path) -> Weights[torch.Tensor]:
    """Tensors by name, at version 0; of a `.pt` file nothing but tensors is ever built.

    Raises:
        CheckpointError: the file is damaged, or holds something else.
    """
    try:
        found: object = (
            load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
        )
    except (OSError, SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
        raise CheckpointError(_KEY, f"'{file}' can't be read ({error})", "Use another file.") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in cast("dict[str, Any]", found).values()):
        raise CheckpointError(_KEY, f"expected tensors by name in '{file}', found something else", "Save a state dict.")
    return Weights(tensors=cast("dict[str, torch.Tensor]", found), version=0)

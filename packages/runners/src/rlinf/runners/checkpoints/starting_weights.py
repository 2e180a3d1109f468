"""Weights that a run starts from, such as those of a policy that was trained on demonstrations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from rlinf.core.capabilities import LoadsNetwork
from rlinf.core.data import Weights
from rlinf.core.errors import CheckpointError
from rlinf.core.weight_files import INDEX_SUFFIX, find_weights, read_shards

KEY = "runner.ckpt_path"
FRESH = ("value_head.", "critic.", "q_head.", "noise_net.")
"""What demonstrations don't teach, so that runs may differ in it: critics, and the network of a flow policy's learned noise."""


def load_starting_weights(policy: Any, path: str, key: str = KEY) -> None:
    """Takes weights over, at version 0; `FRESH` parts that only one of both has are left out, or stay as they are.

    Args:
        policy: what gets them.
        path: what `rlinf.core.weight_files.find_weights` takes; also a folder of Hugging Face, if the policy reads such.
        key: the configuration key that names it.

    Raises:
        CheckpointError: there are no weights there, or they are those of another policy.
    """
    file, reader = find_weights(path, place=key), cast("object", policy)
    if isinstance(reader, LoadsNetwork) and _of_hugging_face(file.parent):
        reader.load_network(file.parent)
        return
    found = read_weights(file, key)
    own: Mapping[str, Any] = policy.weights().tensors
    fresh = {name: tensor for name, tensor in own.items() if name.startswith(FRESH) and name not in found.tensors}
    known = {name: tensor for name, tensor in found.tensors.items() if name in own or not name.startswith(FRESH)}
    policy.load(replace(found, tensors={**known, **fresh}))


def read_weights(file: Path, key: str = KEY) -> Weights[torch.Tensor]:
    """Tensors by name, at version 0; of a file that is no safetensors nothing but tensors is ever built.

    Args:
        file: of weights, or the index of shards.
        key: the configuration key that names it.

    Raises:
        CheckpointError: the file is damaged, or holds something else.
    """
    if not file.name.endswith(INDEX_SUFFIX):
        return Weights(tensors=_tensors(file, key), version=0)
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(set(read_shards(file, place=key).values())):
        tensors |= _tensors(shard, key)
    return Weights(tensors=tensors, version=0)


def _tensors(file: Path, key: str) -> dict[str, torch.Tensor]:
    try:
        found: object = (
            load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
        )
    except (OSError, SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
        raise CheckpointError(key, f"'{file}' can't be read ({error})", "Use another file.") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in cast("dict[str, Any]", found).values()):
        raise CheckpointError(key, f"expected tensors by name in '{file}', found something else", "Save a state dict.")
    return cast("dict[str, torch.Tensor]", found)


def _of_hugging_face(folder: Path) -> bool:
    """Whether transformers wrote it, or somebody for transformers: its `config.json` names an architecture."""
    try:
        content: object = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "architectures" in content

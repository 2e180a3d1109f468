"""Reads the folder of a model: sizes, weights, statistics of normalisation, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from rlinf.core.errors import CheckpointError
from rlinf.models import _tokenizers
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.tensors import weight_files
from rlinf.models.pi0.architecture import Kind, PiArchitecture, from_checkpoint
from rlinf.models.pi0.weight_map import sources

_open: Any = safe_open


def read_architecture(folder: Path, kind: Kind) -> PiArchitecture:
    """What `config.json` says."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(str(path), "there is no such file", "model_path is a local folder; nothing is downloaded.")
    return from_checkpoint(read_json(path), kind, place=str(path))


def of_lerobot(folder: Path) -> bool:
    """Whether LeRobot wrote the folder: its `config.json` names the `type` of the policy, those of others don't."""
    return "type" in read_json(folder / "config.json")


@torch.no_grad()
def load_network(network: nn.Module, folder: Path) -> None:
    """Copies all tensors of `*.safetensors` into a network.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape; what was loaded so far stays.
    """
    files = weight_files(folder)
    own = network.state_dict()
    missing = set(own)
    for path in files:
        with _open(path, framework="pt") as reader:
            for name, source in sources(reader.keys()).items():
                if name not in own:
                    raise CheckpointError(f"{path}: {source}", "nothing here has a place for it", "See pi0/weight_map.py.")
                tensor = reader.get_tensor(source)
                if tensor.shape != own[name].shape:
                    found = f"expected {tuple(own[name].shape)}, found {tuple(tensor.shape)}"
                    raise CheckpointError(f"{path}: {source}", found, "config.json says other sizes than the weights have.")
                # Tensor by tensor: the folder never lies in memory as a whole beside the network.
                own[name].copy_(tensor)
                missing.discard(name)
    if missing:
        raise CheckpointError(str(folder), f"{len(missing)} tensors are missing, such as {sorted(missing)[:3]}")


def tokenizer_of(folder: Path | None, of: PiArchitecture) -> Any:
    """The tokenizer of the folder, from its own files; of a preset one that is made."""
    if folder is None:
        return _tokenizers.tiny_tokenizer(of.vocabulary)
    try:
        return _tokenizers.read_tokenizer(folder)
    except (OSError, ValueError) as error:
        remedy = "Put tokenizer.json and tokenizer_config.json of google/paligemma-3b-pt-224 beside config.json."
        raise CheckpointError(str(folder), f"there is no tokenizer: {error}", remedy) from error

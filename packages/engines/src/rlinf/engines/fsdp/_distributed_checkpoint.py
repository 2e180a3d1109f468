"""Sharded checkpoints through torch.distributed.checkpoint, stored as safetensors; imported only where they are used.

The files that torch.distributed.checkpoint writes by default hold pickles (`.metadata`, and what is no tensor), which run code
when they are read. Its safetensors storage has the place of each shard in the header of its file instead, as JSON, and holds
tensors alone. A file that was changed is noticed by whoever keeps a hash of each, as runners do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rlinf.core.errors import CheckpointError
from rlinf.engines.optim.optimizer import Optimizers
from rlinf.engines.random_state import restore_random_state
from rlinf.engines.ranks import Ranks
from rlinf.engines.weights.manifest import Manifest

_dcp: Any = dcp


def save(folder: Path, state: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Writes every tensor once, each rank its shards; every rank calls it."""
    _dcp.save(dict(state), storage_writer=_writer(folder), no_dist=_no_group(ranks))


def load(folder: Path, module: nn.Module, optimizers: Optimizers, ranks: Ranks) -> int:
    """Restores what `save` wrote, and returns the version; every rank calls it. Each reads what it needs of any file.

    Raises:
        CheckpointError: a file is missing, damaged or made for another model.
    """
    try:
        reader = HuggingFaceStorageReader(str(folder))
        found = cast("Mapping[str, TensorStorageMetadata]", reader.read_metadata().state_dict_metadata)
        state = _wanted(folder, found, module, ranks)
        _dcp.load(state, storage_reader=reader, no_dist=_no_group(ranks))
    except (OSError, SafetensorError, CheckpointException, KeyError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(str(folder), f"can't be read ({error})", "Use another checkpoint.") from error
    _remember(state, module, optimizers)
    optimizers.scale.restore(state)
    own = f"random/{ranks.rank}/"
    if f"{own}cpu" in state:
        restore_random_state({name.removeprefix(own): tensor for name, tensor in state.items() if name.startswith(own)})
    return int(state["version"])


def _writer(folder: Path) -> HuggingFaceStorageWriter:
    folder.mkdir(exist_ok=True)
    return HuggingFaceStorageWriter(os.fspath(folder), save_distributed=True)


def _no_group(ranks: Ranks) -> bool:
    return ranks.alone and not ranks.grouped


def _wanted(folder: Path, found: Mapping[str, TensorStorageMetadata], module: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    """Where to read what: the module's own weights, and new tensors for the rest."""
    own: dict[str, Tensor] = {f"model/{name}": tensor.detach() for name, tensor in module.state_dict().items()}
    # On `meta` they take no memory: names, shapes and types are compared first.
    held = {name: torch.empty(meta.size, dtype=meta.properties.dtype, device="meta") for name, meta in found.items()}
    difference = Manifest.of(own).difference(Manifest.of({name: t for name, t in held.items() if name.startswith("model/")}))
    if difference or "version" not in found:
        problem = f"made for another model, or a file is missing: {difference or 'it has no version'}"
        raise CheckpointError(str(folder), problem, "Use that model's configuration, and all of the files.")
    parameters = dict(module.named_parameters())
    for name, meta in held.items():
        kind, _, path = name.partition("/")
        if kind == "optimizer":
            # As the parameter, so that it is sharded in the same way.
            own[name] = torch.zeros_like(parameters[path.rpartition("/")[0]], dtype=meta.dtype, requires_grad=False)
        elif kind in ("counter", "version", "loss_scale") or name.startswith(f"random/{ranks.rank}/"):
            own[name] = torch.zeros(meta.shape, dtype=meta.dtype)
    return own


def _remember(state: Mapping[str, Tensor], module: nn.Module, optimizers: Optimizers) -> None:
    parameters = dict(module.named_parameters())
    memory: dict[nn.Parameter, dict[str, Tensor]] = {}
    for full, tensor in state.items():
        kind, _, path = full.partition("/")
        if kind in ("optimizer", "counter"):
            name, _, key = path.rpartition("/")
            parameter = parameters[name]
            memory.setdefault(parameter, {})[key] = tensor.to(parameter.device)
    optimizers.remember(memory)

"""What a trainer leaves on disk, as safetensors alone: nothing in it can run code.

model.safetensors            every weight, whole, and the version; rank 0 writes it
optimizer.safetensors        what the optimizer remembers of each weight, whole; rank 0 writes it
random_<rank>.safetensors    the state of torch's generators; each rank writes its own
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor, nn

from rlinf.core.data import Weights
from rlinf.core.errors import CheckpointError
from rlinf.engines.layout import Layout
from rlinf.engines.manifest import Manifest
from rlinf.engines.ranks import Ranks

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


def save(
    folder: Path, weights: Weights[Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout, ranks: Ranks
) -> None:
    """Writes everything that training needs to go on; every rank calls it, and returns when all have written."""
    memory = _memory(module, optimizer, layout)
    version = {"version": str(weights.version)}
    save_file(_random_state(), folder / _random_file(ranks.rank), version)
    if ranks.rank == 0:
        save_file(dict(weights.tensors), folder / MODEL, {"format": "pt", **version})
        save_file(memory, folder / OPTIMIZER, version)
    ranks.barrier()


def load(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout, ranks: Ranks) -> int:
    """Restores what `save` wrote, and returns the version; every rank calls it.

    The number of ranks may differ from that of the writer; a rank that has no random state there keeps its own.

    Raises:
        CheckpointError: a file is missing, damaged, of another version than its neighbours, or made for another model.
    """
    tensors, version = _read(folder / MODEL)
    state: dict[str, Tensor] = module.state_dict()
    difference = Manifest.of(state).difference(Manifest.of(tensors))
    if difference:
        raise CheckpointError(str(folder / MODEL), f"made for another model: {difference}", "Use that model's configuration.")
    memory, found = _read(folder / OPTIMIZER)
    if found != version:
        raise CheckpointError(str(folder / OPTIMIZER), f"expected version {version}, found {found}", "Use another checkpoint.")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(layout.part(tensors[name], tensor))
    _restore_memory(memory, module, optimizer, layout)
    if (folder / _random_file(ranks.rank)).exists():
        _restore_random_state(_read(folder / _random_file(ranks.rank))[0])
    return version


def _read(path: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors of a file, and its version."""
    try:
        with cast("Any", safe_open(path, framework="pt")) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, int(file.metadata()["version"])  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(str(path), f"can't be read ({error})", "Use another checkpoint.") from error


def _memory(module: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout) -> dict[str, Tensor]:
    """`<parameter>/<key>` → whole tensor; collective where parameters are sharded."""
    named = ((name, optimizer.state.get(parameter, {})) for name, parameter in module.named_parameters())
    return {f"{name}/{key}": layout.whole(tensor) for name, held in named for key, tensor in held.items()}


def _restore_memory(memory: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
    optimizer.state.clear()
    parameters = dict(module.named_parameters())
    for path, tensor in memory.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        counter = tensor.dim() == 0
        optimizer.state[parameter][key] = tensor.to(parameter.device) if counter else layout.part(tensor, parameter)


def _random_file(rank: int) -> str:
    return f"random_{rank}.safetensors"


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return {**state, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else state


def _restore_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])

"""What a trainer leaves on disk, as safetensors alone: nothing in it can run code.

whole                        gathered, written by rank 0 unless said otherwise
  model.safetensors          every weight, and the version
  optimizer.safetensors      what the optimizers remember of each weight
  random_<rank>.safetensors  the state of torch's generators; each rank writes its own
sharded
  shards/*.safetensors       all of that, through torch.distributed.checkpoint; each rank writes what it holds
  model.safetensors          the export, if it is wanted
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor, nn

from rlinf.core.checkpoints.disk import unwritten
from rlinf.core.errors import CheckpointError
from rlinf.engines.fsdp.config import CheckpointConfig
from rlinf.engines.layout import Layout
from rlinf.engines.optim.optimizer import Optimizers
from rlinf.engines.random_state import random_file, random_state, restore_random_state
from rlinf.engines.ranks import Ranks
from rlinf.engines.weights.manifest import Manifest

_open: Any = safe_open
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
SHARDS = "shards"


class Saver:
    """Writes and reads the checkpoints of one trainer.

    Args:
        config: in which format.
        module: the policy.
        optimizers: those of its parameters.
        layout: how they lie.
        ranks: who writes.
    """

    def __init__(self, config: CheckpointConfig, module: nn.Module, optimizers: Optimizers, layout: Layout, ranks: Ranks) -> None:
        self._config, self._module, self._optimizers = config, module, optimizers
        self._layout, self._ranks = layout, ranks

    def save(self, folder: Path, version: int) -> None:
        """Writes everything that training needs to go on; every rank calls it, and returns when all have written."""
        self._write(folder, version)
        if self._config.format == "sharded":
            from rlinf.engines.fsdp import _distributed_checkpoint as shards

            shards.save(folder / SHARDS, self._state(version), self._ranks)
        self._ranks.barrier()

    def load(self, folder: Path) -> int:
        """Restores what `save` wrote in either format, and returns the version; every rank calls it.

        The number of ranks may differ from that of the writer; a rank that has no random state there keeps its own.

        Raises:
            CheckpointError: a file is missing, damaged, of another version than its neighbours, or made for another model.
        """
        # An export lies beside the shards, which alone have what optimizers remember.
        if not (folder / SHARDS).is_dir():
            return self._load_whole(folder)
        from rlinf.engines.fsdp import _distributed_checkpoint as shards

        return shards.load(folder / SHARDS, self._module, self._optimizers, self._ranks)

    def whole(self) -> dict[str, Tensor]:
        """All that training needs to go on, gathered on the CPU of each rank; every rank calls it."""
        state: dict[str, Tensor] = self._module.state_dict()
        model = {f"model/{name}": self._layout.whole(state[name]) for name in sorted(state)}
        memory = {f"optimizer/{name}": self._layout.whole(tensor) for name, tensor in self._memory().items()}
        return {**model, **memory, **self._optimizers.scale.state()}

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from what `whole` gave; every rank calls it."""
        state: dict[str, Tensor] = self._module.state_dict()
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(self._layout.part(tensors[f"model/{name}"], tensor))
        self._optimizers.scale.restore(tensors)
        prefix = "optimizer/"
        self._remember({name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)})

    def _write(self, folder: Path, version: int) -> None:
        """Writes this rank's files that are no shards."""
        whole = self._config.format == "whole"
        label = {"version": str(version)}
        if whole or self._config.export:
            state: dict[str, Tensor] = self._module.state_dict()
            # Every rank takes part in putting them together, and rank 0 alone writes.
            weights = {name: self._layout.whole(state[name]) for name in sorted(state)}
            if self._ranks.rank == 0:
                write_tensors(folder / MODEL, weights, {**label, "format": "pt"})
        if whole:
            memory = {name: self._layout.whole(tensor) for name, tensor in self._memory().items()}
            write_tensors(folder / random_file(self._ranks.rank), random_state(), label)
            if self._ranks.rank == 0:
                write_tensors(folder / OPTIMIZER, {**memory, **self._optimizers.scale.state()}, label)

    def _memory(self) -> dict[str, Tensor]:
        """`<parameter>/<key>` → what an optimizer remembers, as it lies."""
        named = ((name, self._optimizers.state(parameter)) for name, parameter in self._module.named_parameters())
        return {f"{name}/{key}": tensor for name, held in named for key, tensor in held.items()}

    def _state(self, version: int) -> dict[str, Tensor]:
        """All that a sharded checkpoint holds, as it lies."""
        state: dict[str, Tensor] = self._module.state_dict()
        model = {f"model/{name}": tensor.detach() for name, tensor in state.items()}
        # Counters have no axis that could be sharded, and are read in another way.
        memory = {f"{'counter' if not t.dim() else 'optimizer'}/{name}": t for name, t in self._memory().items()}
        random = {f"random/{self._ranks.rank}/{name}": tensor for name, tensor in random_state().items()}
        return {**model, **memory, **random, **self._optimizers.scale.state(), "version": torch.tensor([version])}

    def _load_whole(self, folder: Path) -> int:
        tensors, version = read_tensors(folder / MODEL)
        state: dict[str, Tensor] = self._module.state_dict()
        difference = Manifest.of(state).difference(Manifest.of(tensors))
        if difference:
            raise CheckpointError(str(folder / MODEL), f"made for another model: {difference}", "Use that model's configuration.")
        memory, found = read_tensors(folder / OPTIMIZER)
        if found != version:
            raise CheckpointError(str(folder / OPTIMIZER), f"expected version {version}, found {found}", "Use another checkpoint.")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(self._layout.part(tensors[name], tensor))
        self._optimizers.scale.restore(memory)
        # What has no slash in its name is the scale of the loss.
        self._remember({name: tensor for name, tensor in memory.items() if "/" in name})
        if (folder / random_file(self._ranks.rank)).exists():
            restore_random_state(read_tensors(folder / random_file(self._ranks.rank))[0])
        return version

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        parameters = dict(self._module.named_parameters())
        held: dict[nn.Parameter, dict[str, Tensor]] = {}
        for path, tensor in memory.items():
            name, _, key = path.rpartition("/")
            parameter = parameters[name]
            counter = tensor.dim() == 0
            own = tensor.to(parameter.device) if counter else self._layout.part(tensor, parameter)
            held.setdefault(parameter, {})[key] = own
        self._optimizers.remember(held)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Writes a file that `read_tensors` reads, if `about` has the version; its folder is made if it is not there.

    Raises:
        CheckpointError: the disk is full, or the system refuses to write.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), path, dict(about))
    except (OSError, SafetensorError) as error:
        raise unwritten(path, f"can't be written ({error})", error) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors of a file, and its version.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        with _open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, int(file.metadata()["version"])  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(str(path), f"can't be read ({error})", "Use another checkpoint.") from error

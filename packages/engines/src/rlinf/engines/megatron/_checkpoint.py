"""What the trainer leaves on disk: whole weights by the policy's names, the format `whole` of `rlinf.engines.fsdp.checkpoint`.

So the sizes of the next run may differ, and for float32 weights FSDP's trainer reads it, too.

  model.safetensors          every weight, and the version
  optimizer.safetensors      what the optimizer remembers of each weight; `<weight>/master` if the weight itself is less precise
  random_<rank>.safetensors  the state of torch's generators; each rank writes its own
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlinf.core.errors import CheckpointError
from rlinf.engines.fsdp.checkpoint import MODEL, OPTIMIZER, write_tensors
from rlinf.engines.megatron._conversion import Conversion
from rlinf.engines.megatron._groups import Groups
from rlinf.engines.megatron.masters import Masters
from rlinf.engines.optim.optimizer import Optimizers
from rlinf.engines.random_state import random_file, random_state, restore_random_state

NETWORK = "network."
"""Before the names of transformers in those of the policy."""
MASTER = "master"


class Checkpoint:
    """Writes and reads the checkpoints of one trainer.

    Args:
        conversion: between whole weights and this rank's.
        masters: this rank's weights.
        optimizers: theirs.
        groups: the ranks.
        device: where weights are.
    """

    def __init__(
        self, conversion: Conversion, masters: Masters, optimizers: Optimizers, groups: Groups, device: torch.device
    ) -> None:
        self._conversion, self._masters, self._optimizers = conversion, masters, optimizers
        self._groups, self._device = groups, device

    def weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Whole weights by the names of transformers, on the CPU; every rank calls it."""
        computed = next(iter(self._masters.computed.values())).dtype
        held: Mapping[str, Tensor] = self._masters.computed
        if computed != dtype:
            held = {name: self._masters.whole(name, own.detach()) for name, own in self._masters.held.items()}
        return self._gathered({name: own.detach().to(dtype) for name, own in held.items()})

    def _gathered(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        whole = self._conversion.whole(held, self._device)
        return {name: tensor.to("cpu", copy=True) for name, tensor in whole}

    def save(self, folder: Path, version: int, dtype: torch.dtype, names: list[str]) -> None:
        """Writes everything that training needs to go on; every rank calls it, and returns when all have written."""
        rank, label = self._groups.ranks.rank, {"version": str(version)}
        weights = self.weights(dtype)
        memory = self._memory(precise=dtype == torch.float32)
        if rank == 0:
            # The head of a tied model is written as a copy, as safetensors refuses tensors that share memory.
            tied, own = weights["model.embed_tokens.weight"], {name: name.removeprefix(NETWORK) for name in names}
            model = {name: weights[key] if key in weights else tied.clone() for name, key in own.items()}
            write_tensors(folder / MODEL, model, {**label, "format": "pt"})
            write_tensors(folder / OPTIMIZER, memory, label)
        write_tensors(folder / random_file(rank), random_state(), label)
        self._groups.ranks.barrier()

    def _memory(self, *, precise: bool) -> dict[str, Tensor]:
        """`<weight>/<key>` → what the optimizer remembers, whole; what counts steps is the same for all weights."""
        masters = self._masters
        states = {name: self._optimizers.state(held) for name, held in masters.held.items()}
        # Sorted, because all ranks gather them in the same order.
        keys = sorted(key for key, tensor in next(iter(states.values())).items() if tensor.dim())
        found: dict[str, Tensor] = {}
        for key in keys:
            whole = self._gathered({name: masters.whole(name, state[key]) for name, state in states.items()})
            found |= {f"{NETWORK}{name}/{key}": tensor for name, tensor in whole.items()}
        if not precise:
            whole = self._gathered({name: masters.whole(name, held.detach()) for name, held in masters.held.items()})
            found |= {f"{NETWORK}{name}/{MASTER}": tensor for name, tensor in whole.items()}
        counters = {key: tensor for key, tensor in next(iter(states.values())).items() if not tensor.dim()}
        weights = {path.rpartition("/")[0] for path in found}
        return found | {f"{name}/{key}": t.to("cpu", copy=True) for name in weights for key, t in counters.items()}

    def load(self, folder: Path) -> int:
        """Restores what `save` wrote, and returns the version; every rank calls it.

        Raises:
            CheckpointError: a file is missing, damaged, of another version than its neighbours, or made for another model.
        """
        with _reading(folder / MODEL) as model, _reading(folder / OPTIMIZER) as memory:
            if memory.version != model.version:
                found = f"expected version {model.version}, found {memory.version}"
                raise CheckpointError(str(folder / OPTIMIZER), found, "Use another checkpoint.")
            keys = {path.rpartition("/")[2] for path in memory.names}
            for entry in self._conversion.own:
                # Where there is a master, the weight of the model is only what it was rounded to.
                source = memory if MASTER in keys else model
                suffix = f"/{MASTER}" if MASTER in keys else ""
                part = self._conversion.part(entry, lambda name, s=source, end=suffix: s.read(f"{NETWORK}{name}{end}"))
                self._expect(folder / MODEL, entry.name, part)
                self._masters.load(entry.name, part)
            self._optimizers.remember(self._remembered(memory, keys - {MASTER}))
        if (folder / random_file(self._groups.ranks.rank)).exists():
            with _reading(folder / random_file(self._groups.ranks.rank)) as own:
                restore_random_state({name: own.read(name) for name in own.names})
        return model.version

    def _remembered(self, memory: _File, keys: set[str]) -> dict[nn.Parameter, dict[str, Tensor]]:
        held: dict[nn.Parameter, dict[str, Tensor]] = {}
        for entry in self._conversion.own:
            first = f"{NETWORK}{entry.sources[0]}"
            state = held.setdefault(self._masters.held[entry.name], {})
            for key in sorted(keys):
                # A count of steps is the same for all sources of a weight.
                value = memory.read(f"{first}/{key}")
                if value.dim():
                    value = self._conversion.part(entry, lambda name, end=key: memory.read(f"{NETWORK}{name}/{end}"))
                    # A slice would keep the memory of the whole.
                    value = self._masters.own(entry.name, value).clone()
                state[key] = value.to(self._device)
        return held

    def _expect(self, path: Path, name: str, part: Tensor) -> None:
        wanted = self._masters.computed[name].shape
        if part.shape != wanted:
            found = f"made for another model: {name}: expected {list(wanted)}, found {list(part.shape)}"
            raise CheckpointError(str(path), found, "Use that model's configuration.")


class _File:
    """An open file of tensors."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self.names = set(cast("list[str]", file.keys()))
        self.version = int(file.metadata()["version"])

    def read(self, name: str) -> Tensor:
        if name not in self.names:
            found = f"made for another model: no tensor '{name}'"
            raise CheckpointError(str(self._path), found, "Use that model's configuration.")
        return self._file.get_tensor(name)


@contextmanager
def _reading(path: Path) -> Generator[_File]:
    try:
        file: Any = safe_open(path, framework="pt")
        opened = _File(path, file)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(str(path), f"can't be read ({error})", "Use another checkpoint.") from error
    with file:
        yield opened

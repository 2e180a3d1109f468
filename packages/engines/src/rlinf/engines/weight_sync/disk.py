"""All weights, by way of files that both sides see."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.engines.weight_sync.sync import AgreedWeightSync, Outgoing, compare
from rlinf.engines.weights.manifest import Manifest
from rlinf.engines.weights.tensor_bytes import dtype_of

if TYPE_CHECKING:
    from torch import Tensor

_open: Any = safe_open
INDEX = "model.safetensors.index.json"
_SHARD = "model-{:05}-of-{:05}.safetensors"
_VERSION = re.compile(r"version_(\d+)_[0-9a-f]{8}(\.partial)?")


@dataclass(frozen=True, slots=True)
class DiskWeightSync(AgreedWeightSync):
    """Writes weights to a folder of safetensors that each receiver reads: `weight_syncer.type: disk`.

    A version is written as a whole and then renamed, so that a folder `version_<n>_<id>` is complete if it is there; its files are
    named as `from_pretrained`, vLLM and SGLang expect. Earlier versions are removed when every receiver has the new one.
    """

    folder: str
    """Seen by all of them under this path, and written by one sender only."""
    keep: int = 1
    """How many of the newest versions stay in the folder; more let somebody read an earlier one."""
    shard_size: int = 1 << 30
    """Bytes of a file, unless one tensor has more; the sender holds so much beside its weights."""

    def __post_init__(self) -> None:
        AgreedWeightSync.__post_init__(self)
        expect_at_least("shard_size", self.shard_size, 1)
        if not self.folder:
            raise ConfigError("folder", "expected a path that all workers see, found none")
        expect_at_least("keep", self.keep, 1)

    def _post(self, outgoing: Outgoing) -> None:
        target = Path(self.folder) / f"version_{outgoing.version}_{uuid.uuid4().hex[:8]}"
        partial = target.with_name(f"{target.name}.partial")

        def settle(kind: type[BaseException] | None, *_: object) -> None:
            self._remove_others(target) if kind is None else _remove(partial, target)

        outgoing.exits.push(settle)
        partial.mkdir(parents=True)
        self._write(partial, outgoing)
        partial.rename(target)
        # Not with the end: all receivers must have read the files before one that refuses them makes us remove them.
        outgoing.publication.post(str(target))

    def _read(self, parts: Iterator[str], current: Mapping[str, Tensor], manifest: Manifest, place: str) -> Mapping[str, Tensor]:
        read: dict[str, Tensor] = {}
        for path in parts:
            read |= {name: tensor.to(current[name].device) for name, tensor in _tensors(Path(path), place)}
        compare(place, Manifest.of(read), manifest)
        return read

    def _write(self, folder: Path, outgoing: Outgoing) -> None:
        """One file after the other."""
        import safetensors.torch  # which imports torch

        files_of: Any = safetensors.torch
        groups, version = _shards(outgoing.manifest, self.shard_size), str(outgoing.version)
        files = ["model.safetensors"] if len(groups) == 1 else [_SHARD.format(n, len(groups)) for n in range(1, len(groups) + 1)]
        index = {name: file for file, group in zip(files, groups, strict=True) for name in group}
        ends = {group[-1] for group in groups}
        shard: dict[str, Tensor] = {}
        for name, tensor in outgoing.tensors:
            shard[name] = tensor.to("cpu", copy=True).contiguous()
            del tensor  # before the next one is put together
            if name in ends:
                files_of.save_file(shard, folder / index[name], {"format": "pt", "version": version})
                shard = {}
        if len(groups) > 1:
            (folder / INDEX).write_text(json.dumps({"metadata": {"version": outgoing.version}, "weight_map": index}, indent=2))

    def _remove_others(self, target: Path) -> None:
        """Removes all but the newest versions, and what an interrupted sync has left."""
        found = [path for path in target.parent.iterdir() if _VERSION.fullmatch(path.name)]
        older = sorted((p for p in found if p.suffix != ".partial" and p != target), key=os.path.getmtime, reverse=True)
        kept = {target, *older[: self.keep - 1]}
        _remove(*(path for path in found if path not in kept))


def _shards(part: Manifest, size: int) -> list[list[str]]:
    """Consecutive names whose tensors fill a file."""
    groups: list[list[str]] = []
    used = 0
    for entry in part.entries:
        nbytes = dtype_of(entry.dtype).itemsize
        for length in entry.shape:
            nbytes *= length
        if not groups or (used and used + nbytes > size):
            groups.append([])
            used = 0
        groups[-1].append(entry.name)
        used += nbytes
    return groups


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _tensors(folder: Path, place: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a version, in memory of their own: its files may be removed."""
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with _open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name).clone()
    except (OSError, SafetensorError) as error:
        remedy = "Set weight_syncer.folder to a path that all nodes share."
        raise WeightSyncError(place, f"{folder} can't be read ({error})", remedy) from error

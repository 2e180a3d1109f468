"""All weights, by way of files that both sides see."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.checksum import checksum
from rlinf.engines.lazy import Walk
from rlinf.engines.manifest import Manifest
from rlinf.engines.raw import dtype_of
from rlinf.engines.weight_sync.messages import Announcement
from rlinf.engines.weight_sync.publication import Publication
from rlinf.engines.weight_sync.subscription import Subscription
from rlinf.engines.weight_sync.terms import check_common, chosen, compare, gather_only, names_of_pass, types_held

_torch = cast("Any", safetensors.torch)  # untyped
INDEX = "model.safetensors.index.json"
_SHARD = "model-{:05}-of-{:05}.safetensors"
_VERSION = re.compile(r"version_(\d+)_[0-9a-f]{8}(\.partial)?")


@dataclass(frozen=True, slots=True)
class DiskWeightSync:
    """Writes weights to a folder of safetensors that each receiver reads: `weight_syncer.type: disk`.

    A version is written as a whole and then renamed, so that a folder `version_<n>_<id>` is complete if it is there; its files are
    named as `from_pretrained`, vLLM and SGLang expect. Earlier versions are removed when every receiver has the new one.
    """

    folder: str
    """Seen by all of them under this path, and written by one sender only."""
    keep: int = 1
    """How many versions stay."""
    shard_size: int = 1 << 30
    """Bytes of a file, unless one tensor has more; the sender holds so much beside its weights."""
    cast: bool = False
    """Whether floating weights may have another type at the receivers, the same at all of them, to which they are cast first."""
    only: tuple[str, ...] = ()
    """Patterns of the names that are sent, such as `*.lora_A.*`; the receiver keeps the rest. All if there are none."""
    verify: bool = False
    """Whether each receiver compares checksums of all that it holds with the sender's, before it hands the weights over."""
    timeout_s: float = 300.0
    """Seconds that one side waits for each step of the other; writing and reading a version are one step each."""

    def __post_init__(self) -> None:
        check_common(self.timeout_s, shard_size=self.shard_size)
        if not self.folder:
            raise ConfigError("folder", "expected a path that all workers see, found none")
        if self.keep < 1:
            raise ConfigError("keep", f"expected at least 1, found {self.keep}")

    def send(self, comm: Messenger, weights: Weights[Tensor], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers of a group; see `BucketWeightSync.send`."""
        part = chosen(weights, self.only)
        names = names_of_pass(weights, part, verify=self.verify)
        if not ranks:
            gather_only(weights, names)
            return
        sums: dict[str, str] = {}
        home = Path(self.folder)
        target = home / f"version_{weights.version}_{uuid.uuid4().hex[:8]}"
        partial = home / f"{target.name}.partial"
        try:
            with (
                Walk(weights.tensors, names) as walk,
                Publication(comm, group, ranks, way=repr(self), timeout_s=self.timeout_s) as publication,
            ):
                consents = publication.open(
                    weights, part, lambda place, consent: compare(place, consent.manifest, part, cast=self.cast)
                )
                held = types_held(group, consents) if self.cast else dict[str, torch.dtype]()
                partial.mkdir(parents=True)
                self._write(partial, walk, part, weights.version, held, sums)
                partial.rename(target)
                publication.post(str(target))
                publication.close(sums if self.verify else None)
        except BaseException:
            for folder in (partial, target):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self._remove_others(target)

    def recv(self, comm: Messenger, current: Weights[Tensor], group: str, rank: int) -> Weights[Tensor]:
        """The weights that a worker publishes; see `BucketWeightSync.recv`."""
        with Subscription(comm, group, rank, way=repr(self), timeout_s=self.timeout_s) as subscription:

            def held(announcement: Announcement) -> Manifest:
                mine = Manifest.of(current.tensors).only(self.only)
                compare(subscription.place, mine, announcement.manifest, cast=self.cast)
                return mine

            announcement = subscription.open(current, held)
            tensors = dict(current.tensors)
            for path in subscription.parts():
                read = {name: tensor.to(current.tensors[name].device) for name, tensor in _read(Path(path), subscription.place)}
                compare(subscription.place, Manifest.of(read), held(announcement) if self.cast else announcement.manifest)
                tensors.update(read)
            tensors = {name: tensors[name] for name in sorted(tensors)}
            subscription.close(tensors)
        return Weights(tensors=tensors, version=announcement.version, extra=announcement.extra)

    def casting(self) -> DiskWeightSync:
        """See `rlinf.core.capabilities.HasCasting`."""
        return replace(self, cast=True)

    def _write(
        self, folder: Path, walk: Walk, part: Manifest, version: int, held: Mapping[str, torch.dtype], sums: dict[str, str]
    ) -> None:
        """One file after the other; what is in `walk` beyond `part` is only added to `sums`."""
        groups = _shards(part, self.shard_size)
        files = ["model.safetensors"] if len(groups) == 1 else [_SHARD.format(n, len(groups)) for n in range(1, len(groups) + 1)]
        index = {name: file for file, group in zip(files, groups, strict=True) for name in group}
        ends = {group[-1] for group in groups}
        shard: dict[str, Tensor] = {}
        for name, tensor in walk:
            data = tensor.detach().to(held.get(name, tensor.dtype))
            if self.verify:
                sums[name] = checksum(data)
            if name in index:
                shard[name] = data.to("cpu", copy=True).contiguous()
            del tensor, data  # before the next one is put together
            if name in ends:
                _torch.save_file(shard, folder / index[name], {"format": "pt", "version": str(version)})
                shard = {}
        if len(groups) > 1:
            (folder / INDEX).write_text(json.dumps({"metadata": {"version": version}, "weight_map": index}, indent=2))

    def _remove_others(self, target: Path) -> None:
        """Removes all but the newest versions, and what an interrupted sync has left."""
        found = [path for path in target.parent.iterdir() if _VERSION.fullmatch(path.name)]
        older = sorted((p for p in found if p.suffix != ".partial" and p != target), key=os.path.getmtime, reverse=True)
        kept = {target, *older[: self.keep - 1]}
        for path in found:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _shards(part: Manifest, size: int) -> list[list[str]]:
    """Consecutive names whose tensors fill a file."""
    groups: list[list[str]] = []
    used = size
    for entry in part.entries:
        nbytes = dtype_of(entry.dtype).itemsize
        for length in entry.shape:
            nbytes *= length
        if used + nbytes > size and (used or not groups):
            groups.append([])
            used = 0
        groups[-1].append(entry.name)
        used += nbytes
    return groups


def _read(folder: Path, place: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a version, in memory of their own: its files may be removed."""
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with cast("Any", safe_open(path, framework="pt")) as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name).clone()
    except (OSError, SafetensorError) as error:
        remedy = "Set weight_syncer.folder to a path that all nodes share."
        raise WeightSyncError(place, f"{folder} can't be read ({error})", remedy) from error

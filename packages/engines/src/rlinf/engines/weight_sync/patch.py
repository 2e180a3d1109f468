"""Only what has changed since the receivers' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.checksum import checksum
from rlinf.engines.lazy import Walk
from rlinf.engines.manifest import Manifest
from rlinf.engines.raw import as_bytes
from rlinf.engines.weight_sync.delta import Delta, apply, apply_in_place, delta
from rlinf.engines.weight_sync.messages import Announcement
from rlinf.engines.weight_sync.publication import Publication
from rlinf.engines.weight_sync.subscription import Subscription
from rlinf.engines.weight_sync.terms import check_common, chosen, compare, gather_only, names_of_pass, types_held


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor as it was sent last."""

    tensor: Tensor
    checksum: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that goes whole."""

    data: Tensor
    """Its bytes."""

    @property
    def nbytes(self) -> int:
        """What travels."""
        return self.data.numel()


Change = Delta | Whole
Memory = dict[str, Sent]

_memories: WeakKeyDictionary[Any, dict[tuple[Any, str], Memory]] = WeakKeyDictionary()
"""What each sender has sent last, by its messenger, weight sync and group: the weight sync itself is only a configuration."""


@dataclass(frozen=True, slots=True)
class PatchWeightSync:
    """Sends only the elements whose bits differ from the receivers': `weight_syncer.type: patch`.

    After a small step most weights in bfloat16 are what they were. The sender keeps a copy of what it has sent. Each receiver
    says by checksums what it holds; a tensor goes as a patch if all of them hold that copy, whole if one doesn't (it is new, or
    missed a version), and not at all if all of them have it already. What arrives is the sender's to the bit, after its cast to the
    receiver's type.
    """

    bucket_size: int = 128 << 20
    """Bytes of a message, at least; a tensor that goes whole is not divided."""
    cast: bool = False
    """Whether floating weights may have another type at the receivers, the same at all of them, to which they are cast first."""
    snapshot_device: str | None = None
    """Where the copy is kept, such as `cpu`, and compared; None for where the weights are."""
    only: tuple[str, ...] = ()
    """Patterns of the names that are sent, such as `*.lora_A.*`; the receiver keeps the rest. All if there are none."""
    verify: bool = False
    """Whether each receiver compares checksums of all that it holds with the sender's, before it hands the weights over."""
    timeout_s: float = 300.0
    """Seconds that one side waits for each step of the other."""

    def __post_init__(self) -> None:
        check_common(self.timeout_s, bucket_size=self.bucket_size)

    def send(self, comm: Messenger, weights: Weights[Tensor], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers of a group; see `BucketWeightSync.send`."""
        part = chosen(weights, self.only)
        names = names_of_pass(weights, part, verify=self.verify)
        if not ranks:
            gather_only(weights, names)
            return
        memory = _memories.setdefault(comm, {}).setdefault((self, group), {})
        with (
            Walk(weights.tensors, names) as walk,
            Publication(comm, group, ranks, way=repr(self), timeout_s=self.timeout_s) as publication,
        ):
            consents = publication.open(
                weights, part, lambda place, consent: compare(place, consent.manifest, part, cast=self.cast)
            )
            held = types_held(group, consents)
            sums: dict[str, str] = {}
            batches = _Batches(self.bucket_size, publication)
            for name, tensor in walk:
                if name not in held:
                    sums[name] = checksum(tensor)
                    continue
                target = self._as_held(tensor, held[name])
                del tensor  # before the next one is put together
                bases = {consent.base.get(name, "") for consent in consents}
                change, sums[name] = _change(memory, name, target, bases)
                batches.add(name, change)
                del target, change
            batches.flush()
            publication.close(sums if self.verify else None)

    def recv(self, comm: Messenger, current: Weights[Tensor], group: str, rank: int) -> Weights[Tensor]:
        """The weights that a worker publishes; see `BucketWeightSync.recv`. A tensor that did not change is that of `current`."""
        with Subscription(comm, group, rank, way=repr(self), timeout_s=self.timeout_s) as subscription:
            mine = Manifest.of(current.tensors).only(self.only)

            def held(announcement: Announcement) -> Manifest:
                compare(subscription.place, mine, announcement.manifest, cast=self.cast)
                return mine

            announcement = subscription.open(current, held, lambda: {name: checksum(current.tensors[name]) for name in mine.names})
            tensors = {name: current.tensors[name] for name in sorted(current.tensors)}
            for batch in subscription.parts():
                for name, change in batch.items():
                    tensors[name] = _changed(change, current.tensors, name, subscription.place)
            subscription.close(tensors)
        return Weights(tensors=tensors, version=announcement.version, extra=announcement.extra)

    def casting(self) -> PatchWeightSync:
        """See `rlinf.core.capabilities.HasCasting`."""
        return replace(self, cast=True)

    def _as_held(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.detach().to(device=self.snapshot_device or tensor.device, dtype=dtype)


class _Batches:
    """Collects changes into messages of about equal size."""

    def __init__(self, size: int, publication: Publication) -> None:
        self._size = size
        self._publication = publication
        self._batch: dict[str, Change] = {}

    def add(self, name: str, change: Change | None) -> None:
        """Takes the change of a tensor, if there is one."""
        if change is not None:
            self._batch[name] = change
        if sum(held.nbytes for held in self._batch.values()) >= self._size:
            self.flush()

    def flush(self) -> None:
        """Posts what there is, if there is anything."""
        if self._batch:
            self._publication.post(self._batch)
            self._batch = {}


def _change(memory: Memory, name: str, target: Tensor, bases: set[str]) -> tuple[Change | None, str]:
    """What makes `target` of what all receivers hold, None if nothing must; and its checksum. Remembers it as sent."""
    found, sent = checksum(target), memory.get(name)
    if sent is not None and bases == {sent.checksum} != {found} and sent.tensor.dtype == target.dtype:
        change = delta(sent.tensor, target)
        if change.nbytes < target.nbytes:
            apply_in_place(change, sent.tensor, name)
            memory[name] = Sent(sent.tensor, found)
            return change, found
    if sent is None or sent.checksum != found:
        memory[name] = Sent(target.clone(memory_format=torch.contiguous_format), found)
    return (None if bases == {found} else Whole(as_bytes(target))), found


def _changed(change: Change, current: Mapping[str, Tensor], name: str, place: str) -> Tensor:
    """A received tensor, in memory of its own."""
    old = current[name]
    if isinstance(change, Delta):
        return apply(change, old, f"{place}: {name}")
    new = torch.empty(old.shape, dtype=old.dtype, device=old.device)
    into = as_bytes(new)
    if into.numel() != change.data.numel():
        raise WeightSyncError(place, f"{name} came with {change.data.numel()} bytes, expected {into.numel()}", "Synchronise again.")
    into.copy_(change.data)
    return new

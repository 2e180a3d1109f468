"""Only what has changed since the receivers' weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from rlinf.core.config import expect_at_least
from rlinf.engines.lazy import torch
from rlinf.engines.weight_sync.bucket import whole
from rlinf.engines.weight_sync.delta import Delta, apply, apply_in_place, delta
from rlinf.engines.weight_sync.sync import AgreedWeightSync, Outgoing
from rlinf.engines.weights.checksum import checksum
from rlinf.engines.weights.manifest import Manifest
from rlinf.engines.weights.tensor_bytes import as_bytes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor as it was sent last."""

    tensor: Tensor
    checksum: str


Change: TypeAlias = "Delta | Tensor"
"""What has changed of a tensor; or the bytes of all of it."""
Memory = dict[str, Sent]

_memories: WeakKeyDictionary[Any, dict[tuple[Any, str], Memory]] = WeakKeyDictionary()
"""What each sender has sent last, by its messenger, weight sync and group: the weight sync itself is only a configuration."""


@dataclass(frozen=True, slots=True)
class PatchWeightSync(AgreedWeightSync):
    """Sends only the elements whose bits differ from the receivers': `weight_syncer.type: patch`.

    After a small step most weights in bfloat16 are what they were. The sender keeps a copy of what it has sent. Each receiver
    says by checksums what it holds; a tensor goes as a patch if all of them hold that copy, whole if one doesn't (it is new, or
    missed a version), and not at all if all of them have it already. What arrives is the sender's to the bit, after its cast to the
    receiver's type.
    """

    bucket_size: int = 128 << 20
    """Bytes of a message, at least; a tensor that goes whole is not divided."""
    snapshot_device: str | None = None
    """Where the copy is kept, such as `cpu`, and compared; None for where the weights are."""

    def __post_init__(self) -> None:
        AgreedWeightSync.__post_init__(self)
        expect_at_least("bucket_size", self.bucket_size, 1)

    def _post(self, outgoing: Outgoing) -> dict[str, Change] | None:
        comm, group = outgoing.receivers
        memory = _memories.setdefault(comm, {}).setdefault((self, group), {})
        batch: dict[str, Change] = {}
        for name, tensor in outgoing.tensors:
            target = tensor.to(self.snapshot_device or tensor.device)
            del tensor  # before the next one is put together
            change = _change(memory, name, target, {consent.base.get(name, "") for consent in outgoing.consents})
            if change is not None:
                batch[name] = change
            del target, change
            if sum(held.nbytes for held in batch.values()) >= self.bucket_size:
                outgoing.publication.post(batch)
                batch = {}
        return batch or None

    def _read(
        self, parts: Iterator[dict[str, Change]], current: Mapping[str, Tensor], manifest: Manifest, place: str
    ) -> Mapping[str, Tensor]:
        entries = {entry.name: entry for entry in manifest.entries}
        received: dict[str, Tensor] = {}
        for name, change in (item for batch in parts for item in batch.items()):
            old = current[name]
            if isinstance(change, Delta):
                received[name] = apply(change, old, f"{place}: {name}")
            else:
                received[name] = whole(change, entries[name], old.device, place)
        return received

    def _base(self, current: Mapping[str, Tensor], held: Manifest) -> Mapping[str, str]:
        return {name: checksum(current[name]) for name in held.names}


def _change(memory: Memory, name: str, target: Tensor, bases: set[str]) -> Change | None:
    """What makes `target` of what all receivers hold, None if nothing must; remembers it as sent."""
    found, sent = checksum(target), memory.get(name)
    # All receivers hold what was sent last, and it is not what they are to have.
    if sent is not None and bases == {sent.checksum} != {found} and sent.tensor.dtype == target.dtype:
        change = delta(sent.tensor, target)
        if change.nbytes < target.nbytes:
            # In place, so that there is never a second copy of it.
            apply_in_place(change, sent.tensor, name)
            memory[name] = Sent(sent.tensor, found)
            return change
    if sent is None or sent.checksum != found:
        memory[name] = Sent(target.clone(memory_format=torch.contiguous_format), found)
    return None if bases == {found} else as_bytes(target)

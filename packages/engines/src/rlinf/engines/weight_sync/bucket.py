"""All weights, in buckets of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.checksum import checksum
from rlinf.engines.lazy import Walk
from rlinf.engines.manifest import CASTABLE, Entry, Manifest
from rlinf.engines.raw import dtype_of
from rlinf.engines.weight_sync.messages import Announcement, Consent
from rlinf.engines.weight_sync.publication import Publication
from rlinf.engines.weight_sync.stream import Buckets, fill
from rlinf.engines.weight_sync.subscription import Subscription
from rlinf.engines.weight_sync.terms import (
    check_common,
    chosen,
    compare,
    device_of,
    gather_only,
    holds_exactly,
    names_of_pass,
    types_held,
)


@dataclass(frozen=True, slots=True)
class BucketWeightSync:
    """Sends weights in buckets of equal size, the next one filled while the last one travels: `weight_syncer.type: bucket`.

    Beside its weights, the sender needs two buckets and the tensor being put together; a receiver holds the old weights until
    the new ones are whole, and checked. If the sync is interrupted, all receivers keep the old ones.
    """

    bucket_size: int = 128 << 20
    """Bytes of a bucket."""
    bucket_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The type in which floating weights travel; they arrive in the receiver's, which must hold every value of it. 8-bit floats and
    integers travel as they are. None for their own type, which both sides must share."""
    cast: bool = False
    """Whether floating weights may have another type at the receivers, the same at all of them, to which they are cast first."""
    only: tuple[str, ...] = ()
    """Patterns of the names that are sent, such as `*.lora_A.*`; the receiver keeps the rest. All if there are none."""
    verify: bool = False
    """Whether each receiver compares checksums of all that it holds with the sender's, before it hands the weights over."""
    timeout_s: float = 300.0
    """Seconds that one side waits for each step of the other."""

    def __post_init__(self) -> None:
        check_common(self.timeout_s, bucket_size=self.bucket_size)
        if self.cast and self.bucket_dtype is not None:
            raise ConfigError("cast", "weights travel as bucket_dtype, and can't be cast to another type too", "Set one of them.")

    def send(self, comm: Messenger, weights: Weights[Tensor], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers of a group, once all of them hold the same names, shapes and types.

        Args:
            comm: the sender's messenger.
            weights: what to publish; not changed. If ranks put its tensors together (`LazyTensors`), each of them calls this.
            group: the receivers' group.
            ranks: their ranks; none for a rank that only helps to put weights together.

        Raises:
            WeightSyncError: a receiver holds something else; names the first tensor that differs. Nothing was sent. Or a
                receiver could not take the weights; then no receiver hands them over.
            DeadlineExceeded: a receiver did not answer in time. The others are told.
        """
        part = chosen(weights, self.only)
        names = names_of_pass(weights, part, verify=self.verify)
        if not ranks:
            gather_only(weights, names)
            return
        sums: dict[str, str] = {}
        device = device_of(weights)
        with (
            Walk(weights.tensors, names) as walk,
            Publication(comm, group, ranks, way=repr(self), timeout_s=self.timeout_s, at_once=device.type == "cpu") as publication,
        ):
            consents = publication.open(weights, part, lambda place, consent: self._check(place, consent, part))
            held = types_held(group, consents) if self.cast else dict[str, torch.dtype]()
            travels = {e.name: held.get(e.name, dtype_of(e.dtype)) for e in self._travelling(part).entries}
            buckets = Buckets(self.bucket_size, device, publication.room, publication.post)
            for name, tensor in walk:
                data = tensor.detach().to(travels.get(name, tensor.dtype))
                if self.verify:
                    sums[name] = checksum(data)
                if name in travels:
                    buckets.add(data)
                del tensor, data  # before the next one is put together
            buckets.flush()
            publication.close(sums if self.verify else None)

    def recv(self, comm: Messenger, current: Weights[Tensor], group: str, rank: int) -> Weights[Tensor]:
        """The weights that a worker publishes.

        Args:
            comm: the receiver's messenger.
            current: what the receiver holds; not changed.
            group: the sender's group.
            rank: the sender's rank.

        Returns:
            Tensors in memory of their own, where those of `current` are, and the sender's version. What `only` leaves out is that
            of `current`.

        Raises:
            WeightSyncError: the two sides differ, the weights are older than `current`, something was lost on the way, or the
                sender gave up; the message says in what, or why.
            DeadlineExceeded: the sender did not answer in time.
        """
        with Subscription(comm, group, rank, way=repr(self), timeout_s=self.timeout_s) as subscription:

            def held(announcement: Announcement) -> Manifest:
                mine = Manifest.of(current.tensors).only(self.only)
                compare(subscription.place, mine, announcement.manifest, cast=self._may_differ)
                return mine

            announcement = subscription.open(current, held)
            entries = self._travelling(held(announcement) if self.cast else announcement.manifest).entries
            received = {
                entry.name: torch.empty(entry.shape, dtype=dtype_of(entry.dtype), device=current.tensors[entry.name].device)
                for entry in entries
            }
            parts: Iterator[Tensor] = subscription.parts()
            wrong = fill(received.values(), parts)
            if wrong:
                raise WeightSyncError(subscription.place, f"{wrong} bytes too few or too many came", "Synchronise again.")
            tensors = {name: received.get(name, current.tensors[name]) for name in sorted(current.tensors)}
            subscription.close(tensors)
        tensors = {name: tensor.to(current.tensors[name].dtype) for name, tensor in tensors.items()}
        return Weights(tensors=tensors, version=announcement.version, extra=announcement.extra)

    def casting(self) -> BucketWeightSync:
        """See `rlinf.core.capabilities.HasCasting`."""
        return self if self._may_differ else replace(self, cast=True)

    @property
    def _may_differ(self) -> bool:
        """Whether both sides may hold different types."""
        return self.cast or self.bucket_dtype is not None

    def _travelling(self, manifest: Manifest) -> Manifest:
        """The types in which tensors travel."""
        if self.bucket_dtype is None:
            return manifest
        kind = f"torch.{self.bucket_dtype}"
        return Manifest(tuple(replace(e, dtype=kind) if e.dtype in CASTABLE else e for e in manifest.entries))

    def _check(self, place: str, consent: Consent, part: Manifest) -> None:
        """Refuses a receiver that can't hold what travels."""
        compare(place, consent.manifest, part, cast=self._may_differ)
        if self.cast:
            return
        held: dict[str, Entry] = {entry.name: entry for entry in consent.manifest.entries}
        for entry in self._travelling(part).entries:
            mine = held[entry.name].dtype
            if not holds_exactly(mine, entry.dtype):
                problem = f"{entry.name} travels as {entry.dtype}, and the receiver's {mine} can't hold that exactly"
                raise WeightSyncError(place, problem, "Choose the receiver's type as bucket_dtype.")

"""All weights: in one part, or as one stream of bytes that is cut into buckets of equal size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.engines.lazy import torch
from rlinf.engines.weight_sync.exchange import WINDOW
from rlinf.engines.weight_sync.sync import AgreedWeightSync, Outgoing
from rlinf.engines.weights.manifest import CASTABLE, Entry, Manifest
from rlinf.engines.weights.tensor_bytes import as_bytes, dtype_of

if TYPE_CHECKING:
    from torch import Tensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
BUCKET_BYTES = 128 << 20
"""Of a bucket, where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullWeightSync(AgreedWeightSync):
    """Sends every tensor as it is, all in one part: `weight_syncer.type: full`.

    The fastest way for weights that fit into host memory twice. A sender whose ranks put tensors together holds all of them.
    Those on a GPU go in buckets, as with `bucket`, so that they need not pass through the host.
    """

    def _post(self, outgoing: Outgoing) -> dict[str, Bytes] | Tensor | None:
        if outgoing.device.type != "cpu":
            return in_buckets(outgoing, BUCKET_BYTES)
        # NumPy, because messages carry its arrays without pickling them one by one. A lazy tensor is copied: the next one may be
        # put together in its memory; the others are still what they are when all have arrived.
        return {name: as_bytes(tensor.to("cpu", copy=outgoing.lazy)).numpy() for name, tensor in outgoing.tensors}

    def _read(
        self, parts: Iterator[dict[str, Bytes] | Tensor], current: Mapping[str, Tensor], manifest: Manifest, place: str
    ) -> Mapping[str, Tensor]:
        first = next(parts, None)
        if first is None or isinstance(first, torch.Tensor):
            return of_buckets(cast("Iterator[Tensor]", chain([] if first is None else [first], parts)), current, manifest, place)
        data = {name: array for part in chain([first], cast("Iterator[dict[str, Bytes]]", parts)) for name, array in part.items()}
        return {entry.name: whole(data.get(entry.name), entry, current[entry.name].device, place) for entry in manifest.entries}


@dataclass(frozen=True, slots=True)
class BucketWeightSync(AgreedWeightSync):
    """Sends weights in buckets of equal size, the next one filled while the last one travels: `weight_syncer.type: bucket`.

    Beside its weights, the sender needs two buckets and the tensor being put together; a receiver holds the old weights until
    the new ones are whole, and checked.
    """

    bucket_size: int = BUCKET_BYTES
    """Bytes of a bucket; the sender holds two. Larger ones are fewer messages, smaller ones need less memory."""
    bucket_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The type in which floating weights travel; they arrive in the receiver's, which must hold every value of it. 8-bit floats and
    integers travel as they are. None for their own type, which both sides must share."""

    def __post_init__(self) -> None:
        AgreedWeightSync.__post_init__(self)
        expect_at_least("bucket_size", self.bucket_size, 1)
        if self.cast and self.bucket_dtype is not None:
            raise ConfigError("cast", "weights travel as bucket_dtype, and can't be cast to another type too", "Set one of them.")

    def _post(self, outgoing: Outgoing) -> Tensor | None:
        return in_buckets(outgoing, self.bucket_size)

    def _read(self, parts: Iterator[Tensor], current: Mapping[str, Tensor], manifest: Manifest, place: str) -> Mapping[str, Tensor]:
        return of_buckets(parts, current, manifest, place)

    @property
    def _may_differ(self) -> bool:
        return self.cast or self.bucket_dtype is not None

    def _travelling(self, manifest: Manifest) -> Manifest:
        if self.bucket_dtype is None:
            return manifest
        kind = f"torch.{self.bucket_dtype}"
        return Manifest(tuple(replace(e, dtype=kind) if e.dtype in CASTABLE else e for e in manifest.entries))

    def _check(self, place: str, held: Manifest, part: Manifest) -> None:
        AgreedWeightSync._check(self, place, held, part)
        if self.cast:
            return
        types = {entry.name: entry.dtype for entry in held.entries}
        for entry in self._travelling(part).entries:
            mine = types[entry.name]
            if not holds_exactly(mine, entry.dtype):
                problem = f"{entry.name} travels as {entry.dtype}, and the receiver's {mine} can't hold that exactly"
                raise WeightSyncError(place, problem, "Choose the receiver's type as bucket_dtype.")


def in_buckets(outgoing: Outgoing, size: int) -> Tensor | None:
    """Posts all tensors in buckets of so many bytes, but the last one, which it returns."""
    buckets = Buckets(size, outgoing.device, outgoing.publication.room, outgoing.publication.post)
    for _, tensor in outgoing.tensors:
        buckets.add(tensor)
        del tensor  # before the next one is put together
    return buckets.rest()


def of_buckets(parts: Iterator[Tensor], current: Mapping[str, Tensor], manifest: Manifest, place: str) -> Mapping[str, Tensor]:
    """The tensors, where the current ones are.

    Raises:
        WeightSyncError: bytes are missing, or left over.
    """
    received = {entry.name: empty(entry, current[entry.name].device) for entry in manifest.entries}
    wrong = fill(received.values(), parts)
    if wrong:
        raise WeightSyncError(place, f"{wrong} bytes too few or too many arrived", "Synchronise again.")
    return received


def holds_exactly(held: str, travels: str) -> bool:
    """Whether a type can hold every value of another: bfloat16 fits into float32, and not the other way round."""
    return held == travels or torch.promote_types(dtype_of(held), dtype_of(travels)) == dtype_of(held)


def empty(entry: Entry, device: torch.device) -> Tensor:
    """Memory for a tensor."""
    return torch.empty(entry.shape, dtype=dtype_of(entry.dtype), device=device)


def whole(data: Tensor | Bytes | None, entry: Entry, device: torch.device, place: str) -> Tensor:
    """A tensor of the bytes of all of it, in memory of its own.

    Raises:
        WeightSyncError: there are none, or not as many as expected.
    """
    tensor = empty(entry, device if isinstance(data, torch.Tensor) else torch.device("cpu"))
    into, found = as_bytes(tensor), 0 if data is None else len(data)
    if data is None or found != into.numel():
        raise WeightSyncError(place, f"{entry.name} came with {found} bytes, expected {into.numel()}", "Synchronise again.")
    if isinstance(data, torch.Tensor):
        into.copy_(data)
    else:
        into.numpy()[...] = data
    return tensor.to(device)


class Buckets:
    """Fills buckets in turn; one is filled while the last one travels.

    Args:
        size: bytes of each.
        device: where they are.
        room: returns when the oldest bucket may be filled again.
        post: takes a full one.
    """

    def __init__(self, size: int, device: torch.device, room: Callable[[], None], post: Callable[[Tensor], None]) -> None:
        self._size = size
        self._device = device
        self._room = room
        self._post = post
        self._buffers: list[Tensor] = []
        self._posted = 0
        self._used = 0

    def add(self, tensor: Tensor) -> None:
        """Appends a tensor's bytes."""
        data = as_bytes(tensor)
        while data.numel():
            buffer = self._buffer()
            count = min(self._size - self._used, data.numel())
            buffer[self._used : self._used + count].copy_(data[:count])
            self._used += count
            data = data[count:]
            if self._used == self._size:
                self._post(buffer)
                self._posted, self._used = self._posted + 1, 0

    def rest(self) -> Tensor | None:
        """The last bucket as far as it is filled; None if it is empty."""
        return self._buffers[self._posted % WINDOW][: self._used] if self._used else None

    def _buffer(self) -> Tensor:
        """The bucket being filled."""
        if self._used == 0:
            self._room()
            if len(self._buffers) <= self._posted % WINDOW:
                self._buffers.append(torch.empty(self._size, dtype=torch.uint8, device=self._device))
        return self._buffers[self._posted % WINDOW]


def fill(targets: Iterable[Tensor], buckets: Iterator[Tensor]) -> int:
    """Writes the stream into contiguous tensors, one after the other.

    Returns:
        How many bytes are missing, or left over: 0 if the stream ends with the last tensor.
    """
    rest = torch.empty(0, dtype=torch.uint8)
    missing = 0
    for target in targets:
        into = as_bytes(target)
        while into.numel():
            if not rest.numel():
                rest = next(buckets, rest)
            if not rest.numel():
                missing += into.numel()
                break
            count = min(into.numel(), rest.numel())
            into[:count].copy_(rest[:count])
            into, rest = into[count:], rest[count:]
    left = rest.numel()
    # Read to the end all the same, as the sender waits for a receipt of each.
    for bucket in buckets:
        left += bucket.numel()
    return missing + left

"""Tensors as one stream of bytes that is cut into buckets of equal size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from rlinf.engines.raw import as_bytes
from rlinf.engines.weight_sync.publication import WINDOW


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
                self.flush()

    def flush(self) -> None:
        """Posts what there is, if there is anything."""
        if self._used:
            self._post(self._buffers[self._posted % WINDOW][: self._used])
            self._posted, self._used = self._posted + 1, 0

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
    for bucket in buckets:
        left += bucket.numel()
    return missing + left

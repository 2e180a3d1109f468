"""Items as bytes: pickle protocol 5, with large arrays beside the pickle instead of inside.

CPU tensors travel as NumPy views of their memory, so that nothing of torch's own pickling (and no import of torch) is needed.
Classes and functions of a script (`__main__`, or local to a function) travel by value, because the other process can't import them.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any, TypeAlias

from rlinf.core.arrays import is_tensor

Blob: TypeAlias = bytes | bytearray | memoryview
Blobs: TypeAlias = list[Blob]
"""The pickle, then the large buffers that it refers to."""

BESIDE_BYTES = 1 << 15


def encode(item: object) -> Blobs:
    """The item as blobs. Buffers may still be the item's own memory: send or `snapshot` them before it changes."""
    beside: list[pickle.PickleBuffer] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < BESIDE_BYTES:
            return True
        beside.append(buffer)
        return False

    file = io.BytesIO()
    _Pickler(file, 5, buffer_callback=keep_inside).dump(item)
    return [file.getbuffer(), *[buffer.raw() for buffer in beside]]


def snapshot(blobs: Blobs) -> Blobs:
    """Blobs that own their memory, writable so that decoded arrays are."""
    return [blobs[0], *[bytearray(blob) for blob in blobs[1:]]]


def decode(blobs: Sequence[Blob]) -> Any:
    """The item. Arrays in it share memory with the blobs."""
    return pickle.loads(blobs[0], buffers=blobs[1:])  # noqa: S301 - the sockets are private to one run and authenticated


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        if is_tensor(obj):
            return _reduce_tensor(obj)
        if isinstance(obj, (type, FunctionType)) and _belongs_to_script(obj):
            return _by_value(obj)
        return NotImplemented


def _belongs_to_script(obj: type | FunctionType) -> bool:
    return obj.__module__ == "__main__" or "<locals>" in obj.__qualname__ or obj.__qualname__ == "<lambda>"


def _by_value(obj: object) -> Any:
    """Ray's cloudpickle if Ray runs here, so that a class stays one class however it came."""
    cloudpickle: Any = sys.modules.get("ray.cloudpickle")
    return NotImplemented if cloudpickle is None else (_from_value, (cloudpickle.dumps(obj),))


def _from_value(data: bytes) -> object:
    return sys.modules["ray.cloudpickle"].loads(data)


def _reduce_tensor(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.is_quantized or tensor.is_complex():
        return NotImplemented
    flat = tensor.detach().contiguous()
    if flat.dtype == torch.bfloat16:
        return _to_tensor, (flat.view(torch.int16).numpy(), True)
    return _to_tensor, (flat.numpy(), False)


def _to_tensor(array: Any, bfloat16: bool) -> Any:
    import torch

    tensor: Any = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    return tensor.view(torch.bfloat16) if bfloat16 else tensor

"""Items as bytes: pickle protocol 5, with large arrays beside the pickle instead of inside.

CPU tensors travel as NumPy views of their memory, so that nothing of torch's own pickling (and no import of torch) is needed.
Classes and functions of a script (`__main__`, or local to a function) travel by value, because the other process can't import them.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Collection, Sequence
from types import FunctionType
from typing import Any, Final, TypeAlias

import numpy as np

from rlinf.core.data.arrays import is_tensor
from rlinf.core.errors import RLinfError, ShapeError
from rlinf.scheduler.transport.shared_memory import Region

Buffer: TypeAlias = bytes | bytearray | memoryview
Blob: TypeAlias = Buffer | Region
Blobs: TypeAlias = list[Blob]
"""The pickle, then the large buffers that it refers to."""

BESIDE_BYTES = 1 << 15
PICKLING: Final = (TypeError, AttributeError, pickle.PicklingError)
"""Which of these pickling raises depends on the object."""


class Unpicklable(RLinfError, TypeError):
    """What is sent can't be pickled."""


def unpicklable(place: str, what: str, error: BaseException) -> Unpicklable:
    """That it can't be pickled, with what pickling said."""
    first = str(error).strip().partition("\n")[0]
    return Unpicklable(place, f"{what} can't be pickled: {first}", "Send plain data, arrays or tensors.")


class OnDevice(bytes):
    """A pickle that refers to memory of a GPU."""


class WithTensors(bytes):
    """A pickle of an item that has tensors."""


class _Elsewhere(bytearray):
    """Stands for memory of a GPU that does not go with the message."""


def encode(item: object, opens: Collection[str] = (), gpu: list[Any] | None = None, *, place: str = "") -> Blobs:
    """The item as blobs. Buffers may still be the item's own memory: send or `snapshot` them before it changes.

    Args:
        item: what is sent.
        opens: the GPUs, by UUID, of which the receiver can open memory; see `Routes.opens`.
        gpu: takes the memory of other GPUs, as flat tensors of bytes, for which the item has empty blobs in the same order;
            `decode` is to find tensors in their places. None sends copies by way of the CPU.
        place: the message, for an error.

    Raises:
        Unpicklable: the item, or something in it, can't be pickled.
    """
    beside: list[pickle.PickleBuffer] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        # An empty stand-in is never inside: its place among the blobs says where the part belongs.
        if buffer.raw().nbytes < BESIDE_BYTES and not isinstance(buffer.raw().obj, _Elsewhere):
            return True
        beside.append(buffer)
        return False

    file = io.BytesIO()
    pickler = _Pickler(file, 5, buffer_callback=keep_inside)
    pickler.opens, pickler.gpu = opens, gpu
    try:
        pickler.dump(item)
    except PICKLING as error:
        raise unpicklable(place, "an item", error) from error
    head: Buffer = file.getbuffer()
    if pickler.on_device or (pickler.has_tensors and beside):
        # Routes see by the class what is in a pickle, which goes over the wire as the same bytes.
        head = OnDevice(head) if pickler.on_device else WithTensors(head)
    return [head, *[buffer.raw() for buffer in beside]]


def snapshot(blobs: Blobs) -> Blobs:
    """Blobs that own their memory, writable so that decoded arrays are."""
    # The pickle is `encode`'s own already.
    return [blobs[0], *[blob if isinstance(blob, Region) else bytearray(blob) for blob in blobs[1:]]]


def decode(blobs: Sequence[Any]) -> Any:
    """The item. Arrays in it share memory with the blobs."""
    buffers = [blob.view() if isinstance(blob, Region) else blob for blob in blobs]
    return pickle.loads(buffers[0], buffers=buffers[1:])  # noqa: S301 - the sockets are private to one run and authenticated


class _Pickler(pickle.Pickler):
    opens: Collection[str] = ()
    gpu: list[Any] | None = None
    on_device = False
    has_tensors = False

    def reducer_override(self, obj: Any, /) -> Any:
        if is_tensor(obj):
            self.has_tensors = True
            return self._reduce_cuda(obj) if obj.is_cuda else _reduce_tensor(obj)
        if type(obj) is np.ndarray and obj.nbytes >= BESIDE_BYTES and not (obj.flags.c_contiguous or obj.flags.f_contiguous):
            return np.ascontiguousarray(obj).__reduce_ex__(5)  # numpy itself would put it inside the pickle
        if isinstance(obj, (type, FunctionType)) and _belongs_to_script(obj):
            return _by_value(obj)
        return NotImplemented

    def _reduce_cuda(self, tensor: Any) -> Any:
        from rlinf.scheduler.transport import _cuda

        torch: Any = sys.modules["torch"]
        kind: Any = tensor.__class__
        if kind is torch.nn.Parameter:
            # Its data is reduced once more, as a plain tensor.
            return torch.nn.Parameter, (tensor.detach(), tensor.requires_grad)
        if kind is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized:
            return NotImplemented
        if self.gpu is not None and tensor.numel() and not _cuda.shared(tensor, self.opens):
            # A lazy conjugate or negative is a flag of the tensor, not in its memory.
            data = tensor.detach().resolve_conj().resolve_neg().contiguous()
            self.gpu.append(data.reshape(-1).view(torch.uint8))
            return _to_tensor, (pickle.PickleBuffer(_Elsewhere()), str(data.dtype).removeprefix("torch."), tuple(data.shape))
        shared, function, args = _cuda.reduced(tensor, self.opens)
        self.on_device = self.on_device or shared
        return function, args


def _belongs_to_script(obj: type | FunctionType) -> bool:
    return obj.__module__ == "__main__" or "<locals>" in obj.__qualname__ or obj.__qualname__ == "<lambda>"


def _by_value(obj: object) -> Any:
    """Ray's cloudpickle if Ray runs here, so that a class stays one class however it came."""
    cloudpickle: Any = sys.modules.get("ray.cloudpickle")
    return NotImplemented if cloudpickle is None else (_from_value, (cloudpickle.dumps(obj),))


def _from_value(data: bytes) -> object:
    return importlib.import_module("ray.cloudpickle").loads(data)


def _reduce_tensor(tensor: Any) -> Any:
    """A tensor as its bytes, type and shape. NotImplemented leaves it to torch."""
    torch: Any = sys.modules["torch"]
    kind: Any = tensor.__class__
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized or not _is_memory(kind):
        return NotImplemented
    plain = tensor.detach()
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        plain = plain.as_subclass(torch.Tensor)
    # As for a GPU's: a lazy conjugate or negative is not in the memory.
    plain = plain.resolve_conj().resolve_neg().contiguous()
    # As bytes, since NumPy has no bfloat16.
    data = plain.reshape(-1).view(torch.uint8).numpy()
    parts = (data, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))
    if kind is torch.Tensor and not tensor.__dict__:
        return _to_tensor, parts
    return _to_subclass, (kind, tensor.requires_grad, {**tensor.__dict__}, *parts)


def _is_memory(kind: Any) -> bool:
    """Whether a class of tensors is memory and no more: it does not compute its values, nor pickle itself in a way of its own."""
    torch: Any = sys.modules["torch"]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return True
    ways = ("__torch_dispatch__", "__reduce_ex__", "__reduce__", "__getstate__", "__new__", "__init__")
    base = torch.nn.Parameter if issubclass(kind, torch.nn.Parameter) else torch.Tensor
    return all(getattr(kind, way) is getattr(base, way) for way in ways)


def _to_tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    # What came by a process group is a tensor on this side's GPU already.
    tensor: Any = data if isinstance(data, torch.Tensor) else torch.from_numpy(data)  # pyright: ignore[reportUnknownMemberType]
    return tensor.view(getattr(torch, dtype)).reshape(shape)


def _to_subclass(kind: Any, requires_grad: bool, state: dict[str, Any], data: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    tensor = _to_tensor(data, dtype, shape)
    made: Any = torch.nn.Parameter(tensor, requires_grad) if issubclass(kind, torch.nn.Parameter) else tensor.as_subclass(kind)
    # `torch.nn.Parameter` makes its own class only; `_is_memory` refuses subclasses with a constructor.
    if type(made) is not kind:
        made.__class__ = kind
    made.__dict__.update(state)
    return made


def fill(target: Any, item: Any, place: str) -> Any:
    """Copies an array or a tensor into another, which is returned.

    Args:
        target: an array or a tensor, on any device.
        item: what came; may be an array where `target` is a tensor, and the other way round.
        place: for messages.

    Raises:
        ShapeError: `item` is neither, or has another shape or dtype.
    """
    if not _is_array(item):
        raise ShapeError(place, f"expected an array or a tensor, found {type(item).__name__}", "Use recv for other items.")
    expected, found = _form(target), _form(item)
    if expected != found:
        raise ShapeError(place, f"expected {_text(expected)}, found {_text(found)}", "Both sides must agree on them.")
    if not is_tensor(target):
        np.copyto(target, item.numpy() if is_tensor(item) else item)
        return target
    torch: Any = sys.modules["torch"]
    # The target may be a parameter, which autograd does not let change in place.
    with torch.no_grad():
        target.copy_(item if is_tensor(item) else torch.from_numpy(item))
    return target


def _is_array(item: object) -> bool:
    return is_tensor(item) or isinstance(item, np.ndarray)


def _form(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), str(array.dtype).removeprefix("torch.")


def _text(form: tuple[tuple[int, ...], str]) -> str:
    return f"{form[1]} {list(form[0])}"

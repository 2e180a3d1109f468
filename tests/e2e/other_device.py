"""A stand-in for a GPU: `python other_device.py SCRIPT …` runs a script whose local workers hold their tensors on another device.

The tensors say that they are on `meta`, which torch has everywhere, and keep their numbers in host memory. What a GPU refuses is
refused here: tensors of two devices in one operation, NumPy on a tensor of the device, random numbers by another one's generator.
It is some hundred times slower than the CPU.
"""

from __future__ import annotations

import runpy
import sys
import threading
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from rlinf.runners.training import devices

THERE, HERE = torch.device("meta"), torch.device("cpu")
aten = torch.ops.aten
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
MIXED = (aten.copy_.default, aten._to_copy.default, aten._pack_padded_sequence.default, *INDEXED)
GENERATORS: dict[int, torch.device] = {}
"""Where generators are, by the address of each: operations get another Python object of it."""


class OnDevice(Tensor):
    """A tensor of the other device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        kind = {"dtype": inner.dtype, "layout": inner.layout, "device": THERE}
        sizes = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, inner.shape, **sizes, **kind)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made: Any = OnDevice(self.inner.clone())
            memo[id(self)] = torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made
        return memo[id(self)]

    def __reduce_ex__(self, _: Any) -> Any:
        return OnDevice, (self.inner,)

    def __array__(self, *_: Any) -> Any:
        raise TypeError("can't convert a tensor of the other device to NumPy; use Tensor.cpu() first")

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype).to(device or THERE)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside, the thread can make tensors on the other device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """One operation, on the numbers in host memory."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    asked, there = kwargs.get("device"), any(isinstance(tensor, OnDevice) for tensor in tensors)
    if func is aten.copy_.default or func in INDEXED:
        there = isinstance(args[0], OnDevice)
    device = (THERE if there else HERE) if asked is None else torch.device(asked)
    strangers = [tensor for tensor in tensors if tensor.dim() and isinstance(tensor, OnDevice) is not there]
    if strangers and func not in MIXED:
        raise RuntimeError(f"expected all tensors on one device, found two ({func})")
    if func in INDEXED and not there and strangers:
        raise RuntimeError(f"expected indices and values on the CPU, where the tensor is ({func})")
    for leaf in leaves:
        if isinstance(leaf, torch._C.Generator) and GENERATORS.get(leaf._cdata, HERE) != device:
            raise RuntimeError(f"expected a generator of '{device}', found one of another device ({func})")
    own_args, own = tree_map(lambda leaf: leaf.inner if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
    own |= {key: value for key, value in (("device", HERE), ("pin_memory", False)) if key in own}
    out = func(*own_args, **own)
    if device != THERE:
        return args[0] if func is aten.copy_.default else out
    wrapped = tree_map(lambda leaf: OnDevice(leaf) if isinstance(leaf, Tensor) else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


class Generator(torch.Generator):
    """One that knows its device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, "cpu")
        made.at = GENERATORS[made._cdata] = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.at


def maker(make: Any) -> Any:
    """`torch.tensor` and its like, which don't ask whether somebody listens."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device) != THERE:
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(THERE)

    return made


def install() -> None:
    """Lets every thread and every local worker of this process know the device."""
    torch.Generator = Generator
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, maker(getattr(torch, name)))
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    optimizer._get_fused_kernels_supported_devices = lambda: ["cpu", "meta"]
    cast, asked, begin = torch.autocast.__init__, torch.is_autocast_enabled, threading.Thread.run
    torch.autocast.__init__ = lambda self, kind, *args, **kwargs: cast(self, kind.replace("meta", "cpu"), *args, **kwargs)
    torch.is_autocast_enabled = lambda *kinds: asked(*(kind.replace("meta", "cpu") for kind in kinds))
    devices.device_of = lambda _: THERE

    def inside(self: threading.Thread) -> None:
        with Device():
            begin(self)

    threading.Thread.run = inside


if __name__ == "__main__":
    import other_device  # by this name its class can be pickled, while the script is `__main__`

    other_device.install()
    sys.argv = sys.argv[1:]
    with other_device.Device():
        runpy.run_path(sys.argv[0], run_name="__main__")

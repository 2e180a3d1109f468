"""CUDA tensors in items: shared with a process that sees the same GPU, else by way of the CPU. Reached only with such a tensor."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

from rlinf.core.errors import RLinfError


def devices() -> dict[str, int]:
    """The GPUs that this process sees, by UUID, with their numbers here; none without torch."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # None also while another thread imports torch
    if cuda is None or not cuda.is_available():
        return {}
    return {str(cuda.get_device_properties(number).uuid): number for number in range(cuda.device_count())}


def reduced(tensor: Any, opens: Collection[str]) -> tuple[bool, Callable[..., Any], tuple[Any, ...]]:
    """How a CUDA tensor is pickled.

    Args:
        tensor: a plain tensor on a GPU.
        opens: the UUIDs of the GPUs that the receiver sees, on the same node; none if it is not known who receives.

    Returns:
        Whether its memory is shared, and the function and arguments that have the tensor again.
    """
    uuid = shared(tensor, opens)
    plain = tensor.detach()
    if uuid is None:
        return False, from_cpu, (plain.cpu(),)
    # The copy is the receiver's own: the sender may change its tensor, and torch keeps the copy until the receiver has let it go.
    reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
    rebuild, args = reductions.reduce_tensor(plain.clone())
    return True, opened, (uuid, rebuild, args)


def shared(tensor: Any, opens: Collection[str]) -> str | None:
    """The UUID of a tensor's GPU if the receiver can open its memory; else None. Arguments as for `reduced`."""
    if not opens:
        return None
    return next((uuid for uuid, number in devices().items() if number == tensor.device.index and uuid in opens), None)


def opened(uuid: str, rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The tensor that another process shares.

    Args:
        uuid: of its GPU.
        rebuild: torch's function.
        args: its arguments, with the GPU's number in the other process.

    Raises:
        RLinfError: this process does not see the GPU.
    """
    seen = devices()
    if uuid not in seen:
        raise RLinfError(
            f"a tensor on GPU {uuid}",
            f"this process sees {', '.join(seen) or 'no GPU'}",
            "Set cluster.route=socket to send copies.",
        )
    bound = inspect.signature(rebuild).bind(*args)
    # Where each process sees other GPUs, the same one has other numbers.
    bound.arguments["storage_device"] = seen[uuid]
    return rebuild(*bound.args, **bound.kwargs)


def from_cpu(tensor: Any) -> Any:
    """A tensor that came by way of the CPU: on the current GPU of this process if it has one, else on the CPU."""
    torch: Any = sys.modules["torch"]
    return tensor.cuda() if torch.cuda.is_available() else tensor

"""Weights that are put together one at a time, when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from rlinf.engines.lazy import torch
from rlinf.engines.weights.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor


class LazyTensors(Mapping[str, "Tensor"], ABC):
    """Named tensors of which none need exist before it is asked for, and none is kept.

    Where ranks hold parts of them, asking is a collective: every rank asks for the same names in the same order. What a rank
    looks like beforehand is in `manifest`, which asks nobody.
    """

    @abstractmethod
    def manifest(self) -> Manifest:
        """Names, shapes and types of the whole tensors."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors are when they have been put together."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest().names)

    def __len__(self) -> int:
        return len(self.manifest().entries)


class Gathered(LazyTensors):
    """The whole of sharded tensors (`torch.distributed.tensor.DTensor`), one at a time.

    Args:
        state: shards by name, as of `state_dict()` of a module under FSDP2; ordinary tensors are taken as they are.
        types: the types in which they are put together; those that are not named keep their own.
    """

    def __init__(self, state: Mapping[str, Tensor], types: Mapping[str, torch.dtype] | None = None) -> None:
        self._state, self._types = state, types or {}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._state[name].detach()
        tensor = tensor.to(self._types.get(name, tensor.dtype))  # shards, so that ranks send each other no more than they must
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return tensor
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def manifest(self) -> Manifest:
        """The shape of a shard's `DTensor` is that of the whole."""
        own = Manifest.of(dict(self._state)).entries
        return Manifest(tuple(replace(e, dtype=str(self._types[e.name])) if e.name in self._types else e for e in own))

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self._state.values()), torch.device("cpu"))


class TensorPass:
    """One pass over named tensors, which is made to its end whatever happens: other ranks may take part in it.

    Use: `with TensorPass(tensors, names) as walk: for name, tensor in walk: …`. If the body raises, lazy tensors that are left are
    still put together, because other ranks wait for that; not if it was the putting together that failed.
    """

    def __init__(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self._tensors = tensors
        self._left = deque(names)
        self._broken = False

    def __enter__(self) -> TensorPass:
        return self

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        while self._left:
            name = self._left.popleft()
            self._broken = True
            tensor = self._tensors[name]
            self._broken = False
            yield name, tensor
            del tensor  # before the next one is put together

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(self._tensors, LazyTensors) and not self._broken:
            for _ in self:
                pass

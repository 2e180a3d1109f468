"""Weights, gradients and optimizer state that leave the device while others need it, and come back to the bit.

    offload   copy to host memory ─▶ compare ─▶ free          nothing is freed before everything is safe
    onload    allocate ─▶ copy ─▶ compare ─▶ drop the copies   what doesn't fit is freed again, and the copies stay

The host memory of a GPU's copies is kept for the next time: see `rlinf.engines.locked_memory`.

Each of the two happens as a whole or not at all, so that a failure leaves a state from which one can go on. Memory is exchanged
beneath the tensors: whoever holds one (FSDP, an optimizer) holds the same one afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.engines.locked_memory import LockedMemory

PARTS = ("parameters", "gradients", "optimizer")
"""What can be offloaded."""
REMEDY = "Free memory on the device and call onload again: nothing is lost."


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of the device that was freed, and what it held."""

    storage: torch.UntypedStorage
    copy: Tensor
    """The bytes, in host memory."""


class Offloader:
    """What of a trainer is in host memory at the moment.

    Args:
        place: who this is, for messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._away: dict[str, list[Held]] = {}
        self._rooms: dict[str, LockedMemory] = {}

    def away(self, part: str) -> bool:
        """Whether a part is offloaded."""
        return part in self._away

    def expect_here(self, parts: Iterable[str], *, by: str) -> None:
        """Refuses to go on without what `by` needs.

        Raises:
            RLinfError: a part is offloaded.
        """
        missing = [part for part in parts if part in self._away]
        if missing:
            raise RLinfError(f"{self._place}.{by}", f"{' and '.join(missing)} are offloaded", f"Call onload({missing[0]!r}) first.")

    @torch.no_grad()
    def offload(self, tensors: Mapping[str, Sequence[Tensor]]) -> int:
        """Moves parts to host memory; those that are there stay.

        Args:
            tensors: this rank's, by part. Memory that torch can't resize (a file's, another process's) stays where it is.

        Returns:
            The bytes that were freed.

        Raises:
            RLinfError: a copy failed or differs; everything is where it was.
        """
        seen: set[int] = set()
        moved: dict[str, list[Held]] = {}
        for part in (name for name in tensors if name not in self._away):
            storages = [s for s in map(Tensor.untyped_storage, tensors[part]) if s.nbytes() and s.resizable()]
            # Tensors may share memory, which is moved once.
            fresh = {s.data_ptr(): s for s in storages if s.data_ptr() not in seen}
            seen.update(fresh)
            into = self._room(part, list(fresh.values()))
            moved[part] = [self._copied(*pair, part) for pair in zip(fresh.values(), into, strict=True)]
        freed = sum(held.copy.numel() for part in moved.values() for held in part)
        for held in (each for part in moved.values() for each in part):
            held.storage.resize_(0)
        self._away |= moved
        _return_memory()
        return freed

    @torch.no_grad()
    def onload(self, parts: Iterable[str]) -> int:
        """Brings parts back; those that are here stay.

        Returns:
            The bytes that were allocated.

        Raises:
            RLinfError: there is not enough memory, or a copy differs; the parts are offloaded as they were.
        """
        wanted = [part for part in parts if part in self._away]
        back: list[Held] = []
        try:
            for held in (each for part in wanted for each in self._away[part]):
                # Before it is allocated, so that a failure in the midst of it frees it, too.
                back.append(held)
                allocate(held.storage, held.copy.numel())
                _bytes(held.storage).copy_(held.copy)
                if _checksum(_bytes(held.storage)) != _checksum(held.copy):
                    raise RuntimeError("a copy differs from what was offloaded")
        except (RuntimeError, MemoryError) as error:
            for held in back:
                held.storage.resize_(0)
            _return_memory()
            raise RLinfError(f"{self._place}.onload({', '.join(wanted)})", f"failed ({error})", REMEDY) from error
        for part in wanted:
            del self._away[part]
        return sum(held.copy.numel() for held in back)

    def _room(self, part: str, storages: Sequence[torch.UntypedStorage]) -> list[Tensor]:
        """Host memory for copies; for those of a GPU it is the same each time, and locked."""
        sizes = [storage.nbytes() for storage in storages]
        try:
            if not any(storage.device.type == "cuda" for storage in storages):
                return [torch.empty(size, dtype=torch.uint8) for size in sizes]
            room = self._rooms.get(part)
            if room is None or room.size < LockedMemory.needed(sizes):
                self._rooms.pop(part, None)
                room = self._rooms[part] = LockedMemory(LockedMemory.needed(sizes))
            return room.pieces(sizes)
        except (RuntimeError, MemoryError) as error:
            raise self._full(part, error) from error

    def _full(self, part: str, error: Exception) -> RLinfError:
        return RLinfError(f"{self._place}.offload({part})", f"failed ({error})", "Free host memory; nothing was moved.")

    def _copied(self, storage: torch.UntypedStorage, copy: Tensor, part: str) -> Held:
        try:
            copy.copy_(_bytes(storage))
            if _checksum(copy) != _checksum(_bytes(storage)):
                raise RuntimeError("the copy differs")
        except (RuntimeError, MemoryError) as error:
            raise self._full(part, error) from error
        return Held(storage, copy)


class Leaving(ABC):
    """A trainer that can leave its device to others; see `rlinf.core.capabilities.HasOffload`.

    Args:
        place: who this is, for messages.
    """

    def __init__(self, place: str) -> None:
        self._offloader = Offloader(place)
        self._gradients = 0
        """Bytes of gradients at the most since somebody asked."""

    @abstractmethod
    def _tensors(self, part: str) -> list[Tensor]:
        """This rank's tensors of one part."""

    def offload(self, *parts: str) -> int:
        """Moves `parameters`, `gradients` and `optimizer`, or those that are named, to host memory; see `rlinf.engines.offload`.

        Returns:
            The bytes that this rank's device has now free.

        Raises:
            ConfigError: there is no such part.
            RLinfError: it failed, and everything is where it was.
        """
        return self._offloader.offload({part: self._tensors(part) for part in _chosen(parts)})

    def onload(self, *parts: str) -> int:
        """Brings back what `offload` moved, to the bit; all of it, or the parts that are named.

        Returns:
            The bytes that this rank's device has now less.

        Raises:
            ConfigError: there is no such part.
            RLinfError: it failed, and everything is offloaded as it was; it can be called again.
        """
        return self._offloader.onload(_chosen(parts))

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's tensors that are on its device, by part; see `rlinf.core.capabilities.HasMemory`."""
        self._note_gradients()
        sizes = {part: self._gradients if part == "gradients" else self._size(part) for part in PARTS}
        self._gradients = 0
        return sizes

    def _note_gradients(self) -> None:
        """To be called where there are most of them, as nobody can ask then."""
        self._gradients = max(self._gradients, self._size("gradients"))

    def _size(self, part: str) -> int:
        # Tensors may share memory, which counts once.
        storages = {storage.data_ptr(): storage.nbytes() for storage in map(Tensor.untyped_storage, self._tensors(part))}
        return sum(storages.values())


def allocate(storage: torch.UntypedStorage, size: int) -> None:
    """Gives a storage without memory `size` bytes."""
    storage.resize_(size)


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    """The memory as `[n]` bytes, not copied."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))  # pyright: ignore[reportArgumentType, reportCallIssue]


def _checksum(data: Tensor) -> int:
    """The sum of the bytes' 64-bit words mod 2⁶⁴, and of those that are left over."""
    whole = data.numel() // 8 * 8
    # As words, since torch converts all bytes first to add them in another type: eight times the memory, on a device that is full.
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())


def _return_memory() -> None:
    """Gives freed memory to other processes, too."""
    if torch.cuda.is_initialized():
        # What others have read by now of tensors that were shared with them; torch looks at the next one to be shared only.
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def _chosen(parts: Sequence[str]) -> Sequence[str]:
    """The parts that are named, or all."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError("trainer.offload(parts)", f"no part '{unknown[0]}'", f"There are {', '.join(PARTS)}.")
    return parts or PARTS

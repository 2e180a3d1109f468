"""Host memory that a GPU's offloads use again."""

from __future__ import annotations

import gc

import pytest
import torch

from rlinf.engines.locked_memory import LockedMemory


class Driver:
    """Remembers what is locked."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.locked = refuses, dict[int, int]()

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's names
        if not self.refuses:
            self.locked[start] = size
        return 2 * self.refuses

    def cudaHostUnregister(self, start: int) -> int:  # noqa: N802
        return 0 if self.locked.pop(start) else 1


def test_pieces_do_not_touch_and_are_locked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    sizes = [3, 512, 513, 8]
    memory = LockedMemory(LockedMemory.needed(sizes))
    pieces = memory.pieces(sizes)
    assert [len(piece) for piece in pieces] == sizes
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    assert [int(piece.sum()) for piece in pieces] == [0, 512, 2 * 513, 3 * 8]
    assert list(driver.locked.values()) == [memory.size] == [5 * 512]
    del memory
    gc.collect()
    assert not driver.locked


def test_what_the_driver_does_not_lock_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(refuses=True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    (piece,) = LockedMemory(512).pieces([8])
    assert len(piece.fill_(1)) == 8


@pytest.mark.gpu
def test_a_gpu_reads_what_is_locked(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    memory = LockedMemory(LockedMemory.needed([700, 4]))
    _, piece = memory.pieces([700, 4])
    assert piece.is_pinned()
    assert piece.fill_(3).to(device, non_blocking=True).sum().item() == 12
    del memory
    gc.collect()
    assert not piece.is_pinned()

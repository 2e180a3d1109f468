"""A saved buffer: files that say when they are damaged, a disk that is full, and observations that lie on the disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import Trajectory
from rlinf.core.errors import CheckpointError, RLinfError
from rlinf.core.replay import ReplayBuffer
from rlinf.core.replay.saved import SavedBuffer


def filled(*, producers: int = 3, steps: int = 5, folder: Path | None = None, capacity: int = 60) -> ReplayBuffer:
    """Images of random numbers, one episode under way for each producer."""
    random = np.random.default_rng(0)
    buffer = ReplayBuffer(capacity=capacity, producers=producers, seed=1, folder=folder)
    rows = Trajectory.of(
        context={},
        action=random.normal(size=(producers, steps, 1, 2)).astype(np.float32),
        logprob=np.zeros((producers, steps), np.float32),
        reward=random.normal(size=(producers, steps)).astype(np.float32),
        episode=np.arange(producers),
        observation={"main_images": random.integers(0, 256, (producers, steps + 1, 4, 4, 3), np.uint8)},
    )
    buffer.add(rows, np.arange(producers))
    return buffer


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name])


def test_only_slots_that_were_used_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(capacity=3000)
    # Two producers for each shard.
    monkeypatch.setattr("rlinf.core.replay.saved._SHARD", 2 * 6 * (48 + 8 + 4 + 3))
    buffer.save(tmp_path)
    saved = SavedBuffer(tmp_path)
    assert [(shard.first, shard.producers) for shard in saved.shards] == [(0, 2), (2, 1)]
    assert saved.used == 6
    assert saved.nbytes < 5000 < buffer.nbytes
    other = filled(capacity=3000)
    other._columns = {}
    other.load(tmp_path)
    same(other._columns, buffer._columns)


@pytest.mark.parametrize("harm", ["flip", "cut", "lose"])
def test_damage_is_found_and_its_file_is_named(tmp_path: Path, harm: str) -> None:
    filled().save(tmp_path)
    path = tmp_path / "observation.main_images.0000.npy"
    content = bytearray(path.read_bytes())
    if harm == "lose":
        path.unlink()
    else:
        content[-7] ^= 1
        path.write_bytes(content[:-3] if harm == "cut" else content)
    with pytest.raises(CheckpointError, match=r"observation\.main_images\.0000\.npy: .*missing or damaged"):
        ReplayBuffer(capacity=60, producers=3).load(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', "[]"])
def test_a_state_that_says_nothing_is_refused(tmp_path: Path, content: str) -> None:
    filled().save(tmp_path)
    (tmp_path / "replay.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"replay\.json"):
        ReplayBuffer(capacity=60, producers=3).load(tmp_path)


def test_an_empty_buffer_is_saved_and_resumed(tmp_path: Path) -> None:
    ReplayBuffer(capacity=60, producers=3).save(tmp_path)
    other = ReplayBuffer(capacity=60, producers=3)
    other.load(tmp_path)
    assert len(other) == 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let a file grow further, as a full disk does."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled()
    with (
        files_of_at_most(500),
        pytest.raises(CheckpointError, match=r"can't be written \(File too large\).*before this one are whole"),
    ):
        buffer.save(tmp_path)
    assert not (tmp_path / "replay.json").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(CheckpointError, match="GiB of the disk are free"):
        buffer.save(tmp_path)


def test_observations_on_the_disk_are_those_in_memory(tmp_path: Path) -> None:
    memory, disk = filled(), filled(folder=tmp_path / "replay")
    same(disk._columns, memory._columns)
    for _ in range(3):
        one, other = memory.sample(16), disk.sample(16)
        np.testing.assert_array_equal(one.observation["main_images"], other.observation["main_images"])
        np.testing.assert_array_equal(one.observation_next["main_images"], other.observation_next["main_images"])
    own = disk._columns["observation.main_images"]
    assert isinstance(own.base, np.memmap)
    assert list((tmp_path / "replay").iterdir()) == [], "nothing is left behind, however the process ends"
    saved = tmp_path / "saved"
    saved.mkdir()
    disk.save(saved)
    again = ReplayBuffer(capacity=60, producers=3, folder=tmp_path / "replay")
    again.load(saved)
    same(again._columns, memory._columns)
    np.testing.assert_array_equal(again.draw(9), disk.draw(9))


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RLinfError, match=r"'observation\.main_images' can't be had on this disk \(No space left on device\)"):
        filled(folder=tmp_path)

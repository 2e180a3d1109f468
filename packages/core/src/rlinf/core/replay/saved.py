"""The folder that a replay buffer is saved in: what it holds, whether it is whole, and how much that is.

    replay.json               numbers of the buffer, and for each shard its files with their sizes and checksums; written last
    reward.0000.npy …         each column of the producers of shard 0, `[producers, slots that were ever used, *]`

A shard has so many producers as fit into 256 MiB, at least one, so that damage to a file costs these producers and no others.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.checkpoints.disk import unwritten
from rlinf.core.errors import CheckpointError

STATE: Final = "replay.json"
_FORMAT: Final = 2
_SHARD: Final = 256 * 2**20
_BLOCK: Final = 2**20
_GIB: Final = 2**30
_OTHER: Final = "Use another checkpoint."

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Some producers of a saved buffer, one behind the other."""

    first: int
    """The ring of the first."""
    producers: int
    files: Mapping[str, Mapping[str, int]]
    """By column, `bytes` and `crc32` of its file."""

    @property
    def rings(self) -> slice:
        """Which rings these are."""
        return slice(self.first, self.first + self.producers)


def write_saved(folder: Path, state: Mapping[str, Any], columns: Columns, used: int) -> None:
    """Writes the columns of a buffer into a folder that exists.

    Args:
        folder: on a disk with room for them.
        state: what else there is to know, plain JSON values.
        columns: each `[producers, slots, *]`.
        used: of the slots, how many some producer has used; those behind are not written.

    Raises:
        CheckpointError: there is no room, or the system refuses to write.
    """
    needed = sum(column[:, :used].nbytes for column in columns.values())
    try:
        free = shutil.disk_usage(folder).free
        if needed > free:
            why = f"it takes {needed / _GIB:.3g} GiB, and {free / _GIB:.3g} GiB of the disk are free"
            raise _unwritten(folder, why, OSError(errno.ENOSPC, why))
        shards = list(_written(folder, columns, used))
        about = {name: {"dtype": column.dtype.str, "shape": list(column.shape[2:])} for name, column in columns.items()}
        content = {"format": _FORMAT, **state, "columns": about, "used": used, "shards": [asdict(shard) for shard in shards]}
        # Last: what was cut before has no such file, and is read by nobody.
        (folder / STATE).write_text(json.dumps(content))
    except OSError as error:
        raise _unwritten(folder, error.strerror or str(error), error) from error


class SavedBuffer:
    """A folder that `ReplayBuffer.save` wrote; opening it reads `replay.json` and no more.

    Args:
        folder: where it is.

    Raises:
        CheckpointError: `replay.json` is missing or damaged, or of another format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / STATE
        try:
            self.state: Mapping[str, Any] = json.loads(path.read_text())
            if self.state["format"] != _FORMAT:
                raise CheckpointError(str(path), f"format {self.state['format']!r}, this version reads {_FORMAT}", _OTHER)
            self.slots, self.used = int(self.state["slots"]), int(self.state["used"])
            self.filled, self.head = (np.array(self.state[name], np.int64) for name in ("filled", "head"))
            self.columns = {name: (np.dtype(of["dtype"]), tuple(of["shape"])) for name, of in self.state["columns"].items()}
            self.shards = [Shard(**shard) for shard in self.state["shards"]]
            held = sum(shard.producers for shard in self.shards)
            # A buffer to which nothing was added has producers, but no columns and so no shards.
            if held != len(self.head) * bool(self.columns) or any(
                shard.files.keys() != self.columns.keys() for shard in self.shards
            ):
                raise ValueError("its shards are not those of its producers and columns")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(str(path), f"the replay buffer can't be read ({error})", _OTHER) from error

    @property
    def producers(self) -> int:
        """How many rings there are."""
        return len(self.head)

    @property
    def nbytes(self) -> int:
        """Of all columns on the disk."""
        return sum(file["bytes"] for shard in self.shards for file in shard.files.values())

    def path(self, shard: Shard, name: str) -> Path:
        """The file of a column."""
        return self.folder / _file(name, self.shards.index(shard))

    def read(self, shard: Shard) -> dict[str, NDArray[Any]]:
        """Every column of a shard, mapped into memory, after its file was compared with its checksum.

        Raises:
            CheckpointError: a file is missing or damaged; the message names it.
        """
        found: dict[str, NDArray[Any]] = {}
        for name, expected in shard.files.items():
            path, (dtype, shape) = self.path(shard, name), self.columns[name]
            try:
                size = path.stat().st_size
                # First, as it needs no reading of what may be many gigabytes.
                if size != expected["bytes"]:
                    raise ValueError(f"{size:,} bytes, {expected['bytes']:,} were written")
                with path.open("rb") as file:
                    crc = 0
                    while block := file.read(_BLOCK):
                        crc = zlib.crc32(block, crc)
                if crc != expected["crc32"]:
                    raise ValueError("its checksum is another one")
                column = np.load(path, mmap_mode="r", allow_pickle=False) if size else np.empty(0)
                if (column.dtype, column.shape) != (dtype, (shard.producers, self.used, *shape)):
                    raise ValueError(f"{column.dtype} {column.shape} is not what replay.json says")
            except (OSError, ValueError) as error:
                raise CheckpointError(str(path), f"a file of a replay buffer is missing or damaged ({error})", _OTHER) from error
            found[name] = column
        return found


def _written(folder: Path, columns: Columns, used: int) -> Iterator[Shard]:
    """Writes shard by shard."""
    if not columns:
        return
    producers = len(next(iter(columns.values())))
    each = sum(math.prod(column.shape[2:]) * used * column.itemsize for column in columns.values())
    together = max(1, min(producers, _SHARD // max(1, each)))
    for number, first in enumerate(range(0, producers, together)):
        part = {name: column[first : first + together, :used] for name, column in columns.items()}
        files = {name: _write(folder / _file(name, number), column) for name, column in part.items()}
        yield Shard(first=first, producers=min(together, producers - first), files=files)


def _write(path: Path, column: NDArray[Any]) -> dict[str, int]:
    with path.open("wb") as file:
        counted = _Counted(file)
        # To what is no file of the system NumPy writes block by block, so that a column on the disk is never in memory whole.
        np.lib.format.write_array(counted, column, allow_pickle=False)
    return {"bytes": counted.size, "crc32": counted.crc}


class _Counted:
    """Passes on what is written, and keeps its size and checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.size, self.crc = file, 0, 0

    def write(self, block: bytes) -> int:
        self.size += len(block)
        self.crc = zlib.crc32(block, self.crc)
        return self._file.write(block)


def _file(name: str, shard: int) -> str:
    return f"{name}.{shard:04d}.npy"


def _unwritten(folder: Path, why: str, error: OSError) -> CheckpointError:
    return unwritten(folder, f"the replay buffer can't be written ({why})", error)

"""Memory that processes of one node share: a sender copies into it once, a receiver has views of it.

A segment is an anonymous file of the kernel (memfd). It has no name, so that nothing is left behind however a process ends. A
`Lease` is an open file with an exclusive lock on a segment. Sockets carry it from process to process; when the last copy of it
is closed, by the last array that needs it or by the end of its holder, the kernel drops the lock, and the sender finds the
segment free. Segments and mappings stay for a while, because the first touch of a page costs ten times as much as a copy.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import resource
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.core.process import SharedMemory

IDLE_S = 60.0
"""Segments and mappings that nobody used for so long are given back."""
# RLIM_INFINITY is -1, which the modulus makes the largest number.
FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 64), 1 << 16)
"""How many files this process may open, as `ulimit -n` says. The limits below take four fifths of it at most."""
SEGMENTS = min(256, FILES // 12)
"""How many segments a process has at most: each takes two file descriptors. What comes beyond goes by the socket."""
LEASES = min(1024, FILES // 4)
"""How many leases a process holds at most: each is a file descriptor, and one more while arrays have views of it. What comes beyond
is copied into its own memory."""
MAPPINGS = FILES // 12
"""How many mappings stay without being used: each keeps a file descriptor."""
RECENT, OLDER = 8, 32
"""How many segments are tried before a new one is made: the last used ones, which caches still have, then the oldest."""
WASTE = 4
"""A segment serves a message of at least this fraction of its size."""
_ALIGN = 64
_PAGE = 1 << 16

AVAILABLE = sys.platform == "linux"

_live: set[int] = set()
"""The descriptors of this process's leases."""


class Lease:
    """Keeps a segment as it is as long as this object, or a copy of its descriptor anywhere, lives."""

    __slots__ = ("fd", "segment", "size")

    def __init__(self, fd: int, segment: bytes = b"", size: int = 0) -> None:
        self.fd = fd
        self.segment = segment
        self.size = size
        _live.add(fd)

    # Defaults, because the globals of a module may be gone when the interpreter ends.
    def __del__(self, forget: Any = _live.discard, close: Any = os.close) -> None:
        """Gives it back; runs wherever the last array dies, so that it takes no lock."""
        forget(self.fd)
        close(self.fd)


class Region:
    """Some bytes of a segment.

    Args:
        lease: keeps them as they are.
        offset: where they begin.
        length: how many they are.
        several: whether several processes may have them, so that each needs changes of its own.
    """

    __slots__ = ("lease", "length", "offset", "several")

    def __init__(self, lease: Lease, offset: int, length: int, *, several: bool = False) -> None:
        self.lease = lease
        self.offset = offset
        self.length = length
        self.several = several

    def __len__(self) -> int:
        return self.length

    def view(self) -> memoryview:
        """The bytes, writable; the lease lasts as long as any object that shares this memory. A copy if no mapping can be made."""
        try:
            if self.several:
                whole = np.frombuffer(mmap.mmap(self.lease.fd, self.lease.size, access=mmap.ACCESS_COPY), np.uint8)
            else:
                whole = _mapping(self.lease)
        except OSError:  # no file descriptor is left for a mapping
            return _copied(self.lease.fd, self.offset, self.length)
        held: Any = whole[self.offset : self.offset + self.length].view(_Held)
        held.lease = self.lease
        return memoryview(held)


class _Held(np.ndarray[Any, Any]):
    """The object behind all views of a region."""

    lease: Lease


class Arena:
    """The segments of one sender.

    Args:
        limit: how many bytes they have at most; None is a quarter of the machine's memory.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if limit is None else limit
        self._pid = os.getpid()
        # With a number of eight bytes, a segment's name has the 16 of `wire`'s table.
        self._name = secrets.token_bytes(8)
        self._numbers = itertools.count()
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()
        _arenas.add(self)

    @property
    def total(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def hold(self, blobs: Sequence[Any], *, several: bool = False) -> list[Region] | None:
        """Copies of buffers, side by side in one segment.

        Args:
            blobs: at least one buffer.
            several: whether they go to several processes.

        Returns:
            A region for each; None if there is no room, or no file can be opened for it.
        """
        lengths = [len(blob) for blob in blobs]
        ends = list(itertools.accumulate(length + -length % _ALIGN for length in lengths))
        try:
            with self._lock:
                found = self._take(ends[-1])
        except OSError:
            return None
        if found is None:
            return None
        lease, memory = found
        regions: list[Region] = []
        for blob, length, start in zip(blobs, lengths, [0, *ends], strict=False):
            # numpy lets other threads run while it copies; an assignment to a memoryview does not.
            np.copyto(memory[start : start + length], np.frombuffer(blob, np.uint8))
            regions.append(Region(lease, start, length, several=several))
        return regions

    def trim(self, before: float) -> None:
        """Gives back free segments that were not used since a `time.monotonic()`."""
        with self._lock:
            self._drop([segment for segment in self._segments if segment.used < before and segment.free()])

    def _take(self, size: int) -> tuple[Lease, np.ndarray[Any, Any]] | None:
        """A segment that nobody uses, and the lease on it."""
        # A forked child shares its parent's open files and thus their locks: it could not tell who uses a segment.
        if os.getpid() != self._pid or len(_live) >= LEASES:
            return None
        fitting = [segment for segment in self._segments if size <= segment.size <= max(_PAGE, WASTE * size)]
        tried = [*fitting[: -RECENT - 1 : -1], *fitting[:-RECENT][:OLDER]]
        segment = next((each for each in tried if each.free()), None) or self._grown(size)
        if segment is None:
            return None
        self._segments.remove(segment)
        self._segments.append(segment)  # the last used one last
        segment.used = time.monotonic()
        return segment.lease(), segment.memory

    def _grown(self, size: int) -> _Segment | None:
        size = _rounded(size)
        if size > self._limit:
            return None
        if self.total + size > self._limit or len(self._segments) >= SEGMENTS:
            self._drop([segment for segment in self._segments if segment.free()])
        if self.total + size > self._limit or len(self._segments) >= SEGMENTS or size > _memory_left():
            return None
        segment = _Segment(self._name + next(self._numbers).to_bytes(8, "big"), size)
        self._segments.append(segment)
        return segment

    def _drop(self, segments: list[_Segment]) -> None:
        for segment in segments:
            self._segments.remove(segment)
            # A mapping would keep the memory.
            with _lock:
                _mappings.pop(segment.name, None)


class _Segment:
    def __init__(self, name: bytes, size: int) -> None:
        self.name = name
        self.size = size
        self.used = 0.0
        self._shared = SharedMemory()
        self.memory = _remember(name, self._shared, size)

    def free(self) -> bool:
        """Whether there is no lease on it."""
        try:
            # `flock`, not `lockf`: the lock belongs to the open file, and goes with it to other processes.
            fcntl.flock(self._shared.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._shared.fd, fcntl.LOCK_UN)
        return True

    def lease(self) -> Lease:
        """A lease on it, which must be free."""
        fd = _opened(self._shared.fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Lease(fd, self.name, self.size)


class _Mapping:
    __slots__ = ("memory", "used")

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory
        self.used = time.monotonic()


_mappings: dict[bytes, _Mapping] = {}
"""What this process has mapped, by the segment's name. Changed and iterated over with `_lock`."""
_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
_lock = threading.Lock()
_trimming = threading.Event()


def at_limit() -> bool:
    """Whether this process should hold no further lease."""
    return len(_live) >= LEASES


def _mapping(lease: Lease) -> np.ndarray[Any, Any]:
    found = _mappings.get(lease.segment)
    if found is None:
        fd = _opened(lease.fd)  # a mapping keeps its file, and must not keep the lease
        try:
            return _remember(lease.segment, SharedMemory(fd), lease.size)
        finally:
            os.close(fd)
    found.used = time.monotonic()
    return found.memory


def _remember(name: bytes, shared: SharedMemory, size: int) -> np.ndarray[Any, Any]:
    memory = np.frombuffer(shared.map(size), np.uint8)
    with _lock:
        if not _trimming.is_set():
            _trimming.set()
            threading.Thread(target=_trim_regularly, name="rlinf-memory", daemon=True).start()
        while len(_mappings) >= max(1, MAPPINGS):
            # Arrays that have views of it keep the mapping itself.
            del _mappings[min(_mappings, key=lambda known: _mappings[known].used)]
        # Another thread may have mapped it meanwhile: there is one mapping of a segment.
        return _mappings.setdefault(name, _Mapping(memory)).memory


def _trim_regularly() -> None:
    """Gives back what nobody has used for long."""
    while True:
        time.sleep(IDLE_S / 4)
        trim(time.monotonic() - IDLE_S)


def trim(before: float) -> None:
    """Gives back the segments and mappings of this process that were not used since a `time.monotonic()`."""
    with _lock:
        for name in [name for name, mapping in _mappings.items() if mapping.used < before]:
            del _mappings[name]
    for arena in list(_arenas):
        arena.trim(before)


def _copied(fd: int, offset: int, length: int) -> memoryview:
    found = memoryview(bytearray(length))
    done = 0
    while done < length:
        done += os.preadv(fd, [found[done:]], offset + done)
    return found


def _opened(fd: int) -> int:
    """The same file once more, with locks of its own."""
    # `os.dup` would give the same open file, and with it the same lock.
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def _rounded(size: int) -> int:
    """A size that messages of about this size have in common: a quarter of a power of two, in whole pages."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 3))
    return size + -size % step


def _memory_left() -> int:
    """Half of the bytes that the machine can still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 9  # KiB, halved
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2

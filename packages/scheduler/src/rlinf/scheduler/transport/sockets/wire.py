"""Frames on a stream socket: a small header object and any number of blobs.

On one node, blobs in shared memory travel as leases on it (open files, which a Unix socket carries); between nodes, as their bytes.
"""

from __future__ import annotations

import array
import errno
import math
import pickle
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.scheduler.transport.encoding import Blob, Buffer
from rlinf.scheduler.transport.shared_memory import LEASES, Lease, Region, at_limit

# 16 bytes with the unused field, so that what follows stays aligned.
_PREFIX = struct.Struct("<HHIQ")
"""How many parts it has, how many leases, nothing, and how many bytes follow."""
_SEGMENT = struct.Struct("<16sQ")
"""Of a lease: the segment's name and size."""
_REGION = struct.Struct("<IHBxQQ")
"""Where a region is among the blobs, which lease it has, whether several have it, its offset and its length."""
# Blobs begin at multiples of it, so that arrays of any dtype are aligned where they arrive.
_ALIGN = 16
_ZEROS = bytes(_ALIGN)
_JOIN_BYTES = 1 << 16
_READ_BYTES = 1 << 16
_LEASES = max(1, min(64, LEASES // 4))
"""How many leases one frame carries at most; the kernel's limit is 253. They are open before their receiver can decline them."""
_ANCILLARY = socket.CMSG_SPACE(4 * _LEASES)
_RETRY_S = 0.001


class _Carrying(bytes):
    """Bytes that open files go with."""

    leases: list[Lease]


def send_frame(sock: socket.socket, header: object, blobs: Sequence[Blob] = ()) -> None:
    """Sends one frame; small ones in one system call."""
    for part in pack_frame(header, blobs, sock):
        send_part(sock, part)


def pack_frame(header: object, blobs: Sequence[Blob], sock: socket.socket) -> list[Buffer]:
    """One frame as it is sent over a socket with `send_part`, in one piece if it is small."""
    leases: list[Lease] = []
    inline: list[Buffer] = [pickle.dumps(header, 5)]
    inline += _without_regions(blobs, leases if _carries_files(sock) else None)
    sizes = [len(part) for part in inline]
    padded: list[Buffer] = []
    total = 0
    for part, size in zip(inline, sizes, strict=True):
        gap = -size % _ALIGN
        padded.append(part)
        if gap:
            padded.append(_ZEROS[:gap])
        total += size + gap
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    table += _ZEROS[: -len(table) % _ALIGN]
    prefix = _PREFIX.pack(len(sizes), len(leases), 0, len(table) + total) + table
    parts: list[Buffer] = [b"".join([prefix, *padded])] if total <= _JOIN_BYTES else [prefix, *padded]
    if leases:
        # The files go with the first part: they are there when the regions that need them are read.
        first = _Carrying(parts[0])
        first.leases = leases
        parts[0] = first
    return parts


def send_part(sock: socket.socket, part: Buffer) -> None:
    """Sends a part of a frame."""
    if isinstance(part, _Carrying):
        sent = begin_part(sock, part)
        if sent < len(part):
            # Not by `sendmsg` again, which would send the files twice.
            sock.sendall(memoryview(part)[sent:])
    else:
        sock.sendall(part)


def begin_part(sock: socket.socket, part: Buffer, flags: int = 0) -> int:
    """Sends at least one byte of a part, and the open files that go with it; the rest is plain bytes.

    Returns:
        How many bytes were sent.

    Raises:
        BlockingIOError: with `MSG_DONTWAIT`, nothing can be sent now; else, nothing could for as long as `limit_socket` allows.
    """
    if not isinstance(part, _Carrying):
        return sock.send(part, flags)
    files = array.array("i", [lease.fd for lease in part.leases])
    until: float | None = None
    while True:
        try:
            return sock.sendmsg([part], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], flags)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            # The kernel, which has the limit of this socket, does not wait here itself.
            until = time.monotonic() + _limit(sock) if until is None else until
            if flags & socket.MSG_DONTWAIT or time.monotonic() >= until:
                raise BlockingIOError(*error.args) from error
        time.sleep(_RETRY_S)  # too many files of this user are on their way; whoever reads makes room


class FrameReader:
    """Reads frames from a socket, several small ones with one system call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._carries = _carries_files(sock)
        self._leases: deque[Lease] = deque()
        self._ahead = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0

    @property
    def ahead(self) -> bool:
        """Whether it has read something of the next frame already, which a poll of the socket does not see."""
        return self._start < self._end

    def read(self) -> tuple[Any, list[Any]]:
        """The next frame; its blobs are regions, or writable views of one fresh buffer.

        Raises:
            EOFError: the other end closed the connection.
        """
        prefix = bytearray(_PREFIX.size)
        self._fill(memoryview(prefix))
        count, leases, _, rest = _PREFIX.unpack(prefix)
        body = _room(rest)
        self._fill(body)
        sizes = struct.unpack_from(f"<{count}Q", body)
        at = 8 * count + -(8 * count) % _ALIGN
        parts: list[Any] = []
        for size in sizes:
            parts.append(body[at : at + size])
            at += size + -size % _ALIGN
        if leases:
            self._insert_regions(parts, leases)
        return pickle.loads(parts[0]), parts[1:]  # noqa: S301 - the sockets are private to one run and authenticated

    def _insert_regions(self, parts: list[Any], count: int) -> None:
        if len(self._leases) < count:
            raise OSError(errno.EMFILE, "this process has no room for the open files that came with a message")
        leases = [self._leases.popleft() for _ in range(count)]
        table = memoryview(parts.pop())
        split = count * _SEGMENT.size
        for lease, (segment, size) in zip(leases, _SEGMENT.iter_unpack(table[:split]), strict=True):
            lease.segment, lease.size = segment, size
        # At its limit a process copies the regions, and gives the leases back with that.
        full = at_limit()
        position: int
        number: int
        for position, number, several, offset, length in _REGION.iter_unpack(table[split:]):
            region = Region(leases[number], offset, length, several=bool(several))
            parts.insert(position, bytearray(region.view()) if full else region)

    def _fill(self, target: memoryview) -> None:
        done = min(len(target), self._end - self._start)
        target[:done] = memoryview(self._ahead)[self._start : self._start + done]
        self._start += done
        while done < len(target):
            # Large parts are received in place; the buffer is for what is small.
            if len(target) - done >= _READ_BYTES:
                done += self._receive(target[done:])
                continue
            self._start, self._end = 0, self._receive(memoryview(self._ahead))
            take = min(len(target) - done, self._end)
            target[done : done + take] = memoryview(self._ahead)[:take]
            self._start, done = take, done + take

    def _receive(self, target: memoryview) -> int:
        if self._carries:
            # Without the flag, a program started meanwhile could inherit the leases, and keep their segments taken.
            count, came, _, _ = self._sock.recvmsg_into([target], _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            for _, _, data in came:
                # What the kernel has cut off may end within a descriptor.
                self._leases.extend(Lease(file) for (file,) in struct.iter_unpack("i", data[: len(data) // 4 * 4]))
        else:
            count = self._sock.recv_into(target)
        if count == 0:
            raise EOFError
        return count


def _carries_files(sock: socket.socket) -> bool:
    return super(socket.socket, sock).family == socket.AF_UNIX  # without the detour through an enumeration


def _room(size: int) -> memoryview:
    """Memory that is not filled with zeros first if it is large."""
    made: Any = bytearray(size) if size <= _JOIN_BYTES else np.empty(size, np.uint8)
    return memoryview(made)


def _without_regions(blobs: Sequence[Blob], leases: list[Lease] | None) -> list[Buffer]:
    """Blobs as they go inline, and the regions, whose leases are collected, as a table at the end; without `leases` as bytes."""
    inline: list[Buffer] = []
    table: list[bytes] = []
    for position, blob in enumerate(blobs, start=1):
        if not isinstance(blob, Region):
            inline.append(blob)
        elif leases is None or (blob.lease not in leases and len(leases) >= _LEASES):
            inline.append(blob.view())
        else:
            if blob.lease not in leases:
                leases.append(blob.lease)
            table.append(_REGION.pack(position, leases.index(blob.lease), blob.several, blob.offset, blob.length))
    if leases:
        inline.append(b"".join([*(_SEGMENT.pack(lease.segment, lease.size) for lease in leases), *table]))
    return inline


def limit_socket(sock: socket.socket, seconds: float) -> None:
    """A transfer that makes no progress for so long fails with `BlockingIOError`, without a look at the clock for each."""
    # A `timeval`. Not `settimeout`, with which Python makes the socket non-blocking and polls before each call.
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


def _limit(sock: socket.socket) -> float:
    """The seconds of `limit_socket`; infinite without."""
    seconds, micros = struct.unpack("@ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.calcsize("@ll")))
    return seconds + micros / 1e6 or math.inf

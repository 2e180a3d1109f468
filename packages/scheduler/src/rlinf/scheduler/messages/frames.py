"""Frames on a stream socket: a small header object and any number of blobs."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.messages.encoding import Blob

_PREFIX = struct.Struct("<IQ")
_ALIGN = 16
_JOIN_BYTES = 1 << 16
_READ_BYTES = 1 << 16


def send_frame(sock: socket.socket, header: object, blobs: Sequence[Blob] = ()) -> None:
    """Sends one frame; small ones in one system call."""
    parts: list[Blob] = [pickle.dumps(header, 5), *blobs]
    sizes = [len(part) for part in parts]
    padded: list[Blob] = []
    total = 0
    for part, size in zip(parts, sizes, strict=True):
        gap = -size % _ALIGN
        padded.append(part)
        if gap:
            padded.append(b"\0" * gap)
        total += size + gap
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    table += b"\0" * (-len(table) % _ALIGN)
    prefix = _PREFIX.pack(len(sizes), len(table) + total) + table
    if total <= _JOIN_BYTES:
        sock.sendall(b"".join([prefix, *padded]))
        return
    sock.sendall(prefix)
    for part in padded:
        sock.sendall(part)


class FrameReader:
    """Reads frames from a socket, several small ones with one system call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0

    def read(self) -> tuple[Any, list[Blob]]:
        """The next frame; its blobs are writable views of one fresh buffer.

        Raises:
            EOFError: the other end closed the connection.
        """
        prefix = bytearray(_PREFIX.size)
        self._fill(memoryview(prefix))
        count, rest = _PREFIX.unpack(prefix)
        body = bytearray(rest)
        view = memoryview(body)
        self._fill(view)
        sizes = struct.unpack_from(f"<{count}Q", body)
        at = 8 * count + -(8 * count) % _ALIGN
        parts: list[Blob] = []
        for size in sizes:
            parts.append(view[at : at + size])
            at += size + -size % _ALIGN
        return pickle.loads(parts[0]), parts[1:]  # noqa: S301 - the sockets are private to one run and authenticated

    def _fill(self, target: memoryview) -> None:
        done = min(len(target), self._end - self._start)
        target[:done] = memoryview(self._ahead)[self._start : self._start + done]
        self._start += done
        while done < len(target):
            if len(target) - done >= _READ_BYTES:
                done += self._receive(target[done:])
                continue
            self._start, self._end = 0, self._receive(memoryview(self._ahead))
            take = min(len(target) - done, self._end)
            target[done : done + take] = memoryview(self._ahead)[:take]
            self._start, done = take, done + take

    def _receive(self, target: memoryview) -> int:
        count = self._sock.recv_into(target)
        if count == 0:
            raise EOFError
        return count

"""Messages between two processes over a stream socket: JSON, and raw bytes behind it.

    message:  length of the JSON (4 bytes)  |  length of the payload (8 bytes)  |  JSON object  |  payload

Nothing is unpickled. This file imports the standard library only, so that a child which must start fast, or whose interpreter lacks
rlinf-core, can load it alone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

_HEADER = struct.Struct("<IQ")
_CHUNK = 1 << 16
"""Bytes that are read at once; from twice as many on, the allocator would map and unmap memory for each read."""
LIMIT = 1 << 30
_encode = json.JSONEncoder(separators=(",", ":")).encode

Message = tuple[dict[str, Any], bytes]


class ConnectionLost(ConnectionError):
    """The other side is gone, or what it sends is no message."""


class Connection:
    """One end.

    Args:
        sock: connected; it belongs to this object.
        send_s: seconds after which a message of which nothing more is taken counts as lost; None waits for ever.
        limit: bytes of the longest message that is accepted.
    """

    def __init__(self, sock: socket.socket, *, send_s: float | None = None, limit: int = LIMIT) -> None:
        # A default timeout makes Python's sockets non-blocking, and to those SO_SNDTIMEO means nothing.
        sock.settimeout(None)
        if send_s is not None:
            # The kernel's own limit: Python's would bound the whole message, and look at the clock and poll for each part of it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(send_s), int(send_s % 1 * 1e6)))
        self._socket = sock
        self._limit = limit
        self._buffer = bytearray()

    @classmethod
    def to_parent(cls) -> Connection:
        """In a process that was started with `ChildProcess(connect=True)`: the connection to its parent.

        The socket arrives as standard input, which is empty from then on. Neither it nor its other end is inherited by what this
        process starts, so that both sides notice when the other one has gone. Messages of the parent may have any length.
        """
        sock = socket.socket(fileno=os.dup(0))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        return cls(sock, limit=1 << 63)

    def fileno(self) -> int:
        """The descriptor to poll; `receive` returns at once where it is readable."""
        return self._socket.fileno()

    def send(self, fields: Mapping[str, Any], payload: bytes = b"") -> None:
        """Sends a whole message.

        Raises:
            ConnectionLost: nobody is there to read it.
            TypeError: a field that JSON doesn't know.
        """
        text = _encode(fields).encode()
        head = _HEADER.pack(len(text), len(payload)) + text
        try:
            # One call for a small message; joining a large one would copy it.
            if len(payload) <= _CHUNK:
                self._socket.sendall(head + payload)
            else:
                self._socket.sendall(head)
                self._socket.sendall(payload)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Gives open files to the other process, which must take exactly them next, by `receive_descriptors`.

        Raises:
            ConnectionLost: nobody is there to take them.
        """
        try:
            socket.send_fds(self._socket, [b"\0"], list(descriptors))
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive_descriptors(self, count: int) -> list[int]:
        """Takes the open files that the other process gives, however long it takes; nothing else may be under way.

        Raises:
            ConnectionLost: the other side is gone, or gives others.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1, count)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        # What arrives over a socket is inheritable, unlike all that Python opens itself.
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if len(descriptors) != count:
            raise ConnectionLost(f"expected {count} open files, found {len(descriptors)}" if data else "the connection was closed")
        return descriptors

    def receive(self) -> Message | None:
        """Reads once: the next message, or None while it isn't complete; there may be others behind it (`received`).

        Raises:
            ConnectionLost: the other side is gone, or what it sends is no message.
        """
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not data:
            where = " in the middle of a message" if self._buffer else ""
            raise ConnectionLost(f"the connection was closed{where}")
        self._buffer += data
        return self.received()

    def received(self) -> Message | None:
        """The next message of what was read before, or None while it isn't complete.

        Raises:
            ConnectionLost: as `receive`.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        text, payload = _HEADER.unpack_from(self._buffer)
        if text + payload > self._limit:  # before anything of that size is kept
            raise ConnectionLost(
                f"the other side announced a message of {text + payload} bytes, at most {self._limit} are accepted"
            )
        end = _HEADER.size + text + payload
        if len(self._buffer) < end:
            return None
        # A bytearray can't be shortened while there is a view of it, so that this one ends before.
        with memoryview(self._buffer) as view:
            raw, rest = bytes(view[_HEADER.size : _HEADER.size + text]), bytes(view[_HEADER.size + text : end])
        del self._buffer[:end]
        try:
            fields = json.loads(raw)
        except ValueError as error:
            raise ConnectionLost(f"the other side sent a message that is no JSON ({error})") from error
        if not isinstance(fields, dict):
            raise ConnectionLost("the other side sent a message that is no JSON object")
        return cast("dict[str, Any]", fields), rest

    def wait(self) -> Message:
        """The next message, however long it takes; see `fileno` for a wait for several connections.

        Raises:
            ConnectionLost: as `receive`.
        """
        # Messages that were read with the one before are in the buffer, where no poll of the socket sees them.
        message = self.received()
        while message is None:
            message = self.receive()
        return message

    def wait_for(self, seconds: float) -> Message | None:
        """The next message; None if it is not complete within so many seconds.

        Raises:
            ConnectionLost: as `receive`.
        """
        until = time.monotonic() + seconds
        # Not `select.select`, which takes no descriptor above 1023.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        message = self.received()
        while message is None:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            message = self.receive()
        return message

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

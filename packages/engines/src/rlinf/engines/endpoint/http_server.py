"""HTTP/1.1 on asyncio's streams: requests with JSON bodies, answers of JSON or of server-sent events.

No web framework: what is served is four paths on the loopback, and a framework would be this part's heaviest dependency.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

HEAD_BYTES: Final = 64 * 1024
"""The longest head of a request."""
IDLE_S: Final = 75.0
"""How long a connection is kept without a request, and how long a request may take to arrive, or a client to read on."""
LOOK_S: Final = 0.25
"""How often a request that is answered is checked for a client that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPRequest:
    """What a client sends."""

    method: str
    path: str
    """Without a query."""
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPAnswer:
    """An answer: JSON, or a stream."""

    status: int = 200
    content: Any = None
    """What is written as JSON, if there is no stream."""
    events: AsyncGenerator[Any] | None = None
    """What is written as server-sent events, each as JSON, with `[DONE]` behind them."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class BadRequest(Exception):
    """What arrived is no request that can be answered; the connection ends.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


Handler = Callable[[HTTPRequest], Awaitable[HTTPAnswer]]


class HTTPServer:
    """Answers requests on the running event loop.

    Args:
        handler: answers one; it raises nothing. It is cancelled when its client is gone.
        refuse: the content of an answer to what is no request, from its status and what is wrong.
        max_bytes: the longest body.
        max_connections: more are closed at once.
    """

    def __init__(self, handler: Handler, refuse: Callable[[int, str], Any], *, max_bytes: int, max_connections: int) -> None:
        self._handler, self._refuse, self._max_bytes, self._most = handler, refuse, max_bytes, max_connections
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listens no more, and ends all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= self._most:
            writer.close()
            return
        self._connections.add(task)
        try:
            # The other side may be gone at any moment, which is its own affair.
            gone = (ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError)
            with contextlib.suppress(*gone):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after the other."""
        while True:
            try:
                # Over head and body together: who sends a byte at a time would otherwise hold a connection for ever.
                async with asyncio.timeout(IDLE_S):
                    request = await self._read(reader, writer)
            except BadRequest as error:
                _write(writer, HTTPAnswer(status=error.status, content=self._refuse(error.status, str(error))), last=True)
                await _drained(writer)
                return
            if request is None:
                return
            last = request.headers.get("connection", "").lower() == "close"
            answer = await self._while_there(reader, asyncio.ensure_future(self._handler(request)))
            if answer is None:
                return
            if answer.events is None:
                _write(writer, answer, last=last)
                await _drained(writer)
            else:
                await self._while_there(reader, asyncio.ensure_future(_stream(writer, answer, answer.events, last=last)))
            if last or reader.at_eof():
                return

    async def _while_there(self, reader: asyncio.StreamReader, task: asyncio.Future[Any]) -> Any:
        """The result of a task; it is cancelled when the client is gone, and the result is None."""
        try:
            # asyncio tells nobody that a client is gone as long as nothing is read from it.
            while not task.done() and not reader.at_eof():
                await asyncio.wait([task], timeout=LOOK_S)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HTTPRequest | None:
        """The next request; None if the client has none."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial.strip():
                raise BadRequest(400, "the connection ended within the head of a request") from None
            return None
        except asyncio.LimitOverrunError:
            raise BadRequest(431, f"the head of the request is longer than {HEAD_BYTES} bytes") from None
        method, target, headers = _head(head)
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal():
            raise BadRequest(411, "expected a body with its content-length")
        if int(length) > self._max_bytes:
            raise BadRequest(413, f"a body of {length} bytes is longer than {self._max_bytes}")
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(length))
        return HTTPRequest(method=method, path=target.partition("?")[0], headers=headers, body=body)


def _head(head: bytes) -> tuple[str, str, dict[str, str]]:
    # Every byte is a character of latin-1, so that no head can fail here.
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "expected a request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise BadRequest(400, "a header has no name")
        # Two lengths would let two readers see two different requests.
        if name.lower() == "content-length" and "content-length" in headers:
            raise BadRequest(400, "two headers give the length of the body")
        headers[name.lower()] = value.strip()
    return words[0], words[1], headers


def _write(writer: asyncio.StreamWriter, answer: HTTPAnswer, *, last: bool) -> None:
    body = json.dumps(answer.content, ensure_ascii=False).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    writer.write(_top(answer.status, headers, last=last) + body)


async def _stream(writer: asyncio.StreamWriter, answer: HTTPAnswer, events: AsyncGenerator[Any], *, last: bool) -> None:
    headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked", **answer.headers}
    writer.write(_top(answer.status, headers, last=last))
    # Closed at once where the client is gone, for it holds a place.
    async with contextlib.aclosing(events):
        async for event in events:
            await _chunk(writer, f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
    await _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await _drained(writer)


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await _drained(writer)


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Returns when the client has taken most of what was written; one that reads nothing is left."""
    try:
        async with asyncio.timeout(IDLE_S):
            await writer.drain()
    except TimeoutError:
        # Closing would wait for the client, too.
        writer.transport.abort()
        raise


def _top(status: int, headers: Mapping[str, str], *, last: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"connection: {'close' if last else 'keep-alive'}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

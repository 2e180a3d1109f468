"""A server of text on this machine or elsewhere, spoken to over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.errors import DeadlineExceeded, RLinfError
from rlinf.core.process import ChildProcess, log_tail

GRACE_S: Final = 15.0
"""Seconds that a server is given to end, in which it removes its shared memory and ends its own workers."""
_POLL_S: Final = 0.25
_EXIT_S: Final = 2.0


class Server:
    """A server that runs already, or one that is started here and ends with this process.

    Args:
        base_url: `http://host:port`.
        log: where a server that is started here writes; None for one that runs already.
    """

    def __init__(self, base_url: str, log: Path | None) -> None:
        self._aiohttp: Final[Any] = importlib.import_module("aiohttp")
        self._base_url, self._log = base_url.rstrip("/"), log
        self._process: ChildProcess | None = None
        waits = self._aiohttp.ClientTimeout(total=None)  # deadlines are the caller's
        # A connection that is kept may be closed by the server at the moment in which it is used again.
        connector = self._aiohttp.TCPConnector(limit=0, force_close=True)
        self._session: Final = self._aiohttp.ClientSession(timeout=waits, connector=connector)

    @classmethod
    async def start(cls, command: Sequence[str], *, port: int, env: Mapping[str, str], log: Path) -> Server:
        """Starts a server on the loopback interface; it is not up yet.

        Args:
            command: the program and its arguments.
            port: on which it will listen.
            env: what its environment has beside ours.
            log: where its output goes.
        """
        server = cls(f"http://127.0.0.1:{port}", log)
        server._process = ChildProcess(command, env={**os.environ, **env}, log=log, grace_s=GRACE_S)
        return server

    async def up(self, path: str) -> None:
        """Returns when a GET of `path` is answered with 200.

        Raises:
            RLinfError: the process ended; the message has the end of its log.
        """
        while True:
            try:
                async with self._session.get(self._base_url + path) as answer:
                    if answer.status == 200:
                        return
            # Nobody listens there yet.
            except self._aiohttp.ClientError:
                pass
            self._raise_if_ended()
            await asyncio.sleep(_POLL_S)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a POST, read as JSON if it is.

        Raises:
            RLinfError: the server refuses, with its own words, or it is gone.
        """
        try:
            async with self._session.post(self._base_url + path, json=body or {}) as answer:
                text: str = await answer.text()
                if answer.status != 200:
                    raise RLinfError(f"POST {path}", f"the server answers {answer.status}: {text[:2000]}")
                return json.loads(text) if text.startswith(("{", "[")) else text
        except self._aiohttp.ClientError as error:
            await self._raise_if_exiting()
            raise RLinfError(f"POST {path}", f"the server is gone: {error}") from error

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The answer to a POST, event by event; closing it closes the connection, which ends the request.

        Raises:
            RLinfError: the server refuses, with its own words, or it is gone.
        """
        try:
            async with self._session.post(self._base_url + path, json=body) as answer:
                if answer.status != 200:
                    raise RLinfError(f"POST {path}", f"the server answers {answer.status}: {(await answer.text())[:2000]}")
                async for line in answer.content:
                    data = line.decode().removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    if data:
                        yield json.loads(data)
        except self._aiohttp.ClientError as error:
            await self._raise_if_exiting()
            raise RLinfError(f"POST {path}", f"the server is gone: {error}") from error

    async def close(self) -> None:
        """Ends what was started here, with all its children."""
        await self._session.close()
        process = self._process
        # In a thread, as waiting for the process would block the loop.
        if process is not None and await asyncio.to_thread(process.stop) is None:
            raise DeadlineExceeded("server", f"process {process.pid} did not end when it was killed", "End it by hand.")

    def log_tail(self) -> str:
        """The end of the log; "" if there is none."""
        return "" if self._log is None else log_tail(self._log)

    async def _raise_if_exiting(self) -> None:
        """Gives a process whose connections are closed the time to end, so that the error names its end as the cause."""
        for _ in range(int(_EXIT_S / _POLL_S) if self._process is not None else 0):
            self._raise_if_ended()
            await asyncio.sleep(_POLL_S)

    def _raise_if_ended(self) -> None:
        if self._process is not None and self._process.wait(0.0) is not None:
            raise RLinfError("server", f"its process {self._process.cause()}")


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as flags: `a_b` as `--a-b`, True alone, False as `--no-a-b`, a sequence as several words."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            several = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
            words += [f"--{flag}", *map(str, several)]
    return words

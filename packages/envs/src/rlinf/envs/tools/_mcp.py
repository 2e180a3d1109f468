"""A connection to an MCP server, on an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import mcp
from mcp.types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

from rlinf.core.agents import Tool, ToolError
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.envs.tools.mcp import MCP, connection_to

CLOSE_S: Final = 10.0
"""Within which a server is asked to end; the library then kills it."""
ALIVE_S: Final = 60.0
"""Within which a server that has not answered a call in time says which tools it has. Long, as it may do one thing at a time."""
_CLOSED: Final = -32000
"""JSON-RPC's code for a connection that is closed, as the library gives it."""


class Connection:
    """One server, begun anew where it has ended.

    Args:
        config: which one.
    """

    def __init__(self, config: MCP) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        # A loop of its own: a connection belongs to the loop that made it, and rollouts come and go with theirs.
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=f"mcp {config.server}")
        self._thread.start()
        self._session: _Session | None = None
        self._former = list[_Session]()
        self._tools: tuple[Tool, ...] | None = None

    def tools(self) -> tuple[Tool, ...]:
        """What the server can do, asked once.

        Raises:
            ConfigError: it does not answer.
        """
        if self._tools is None:
            key = "command" if self._config.command else "url"
            # As long to list them as to start.
            patience = 2 * self._config.start_s
            try:
                found = asyncio.run_coroutine_threadsafe(self._listed(), self._loop).result(patience)
            except (RLinfError, TimeoutError) as error:
                reason = error.problem if isinstance(error, RLinfError) else f"no answer within {patience:g} s"
                raise ConfigError(key, f"the MCP server '{self._config.server}' does not answer: {reason}") from error
            self._tools = tuple(map(self._tool, found))
        return self._tools

    def close(self) -> None:
        """Ends the connection, and the server if it was started here."""
        session, self._session = self._session, None
        if session is not None:
            self._loop.call_soon_threadsafe(session.over.set)
            self._former.append(session)
        # A server that hung takes seconds to be ended; nobody else would end it.
        for each in self._former:
            each.ended.wait(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    async def _listed(self) -> Sequence[Any]:
        async def all_pages(client: mcp.Client) -> Sequence[Any]:
            page = await client.list_tools()
            found = list(page.tools)
            while page.next_cursor is not None:
                page = await client.list_tools(cursor=page.next_cursor)
                found += page.tools
            return found

        return await self._asked(all_pages)

    def _tool(self, described: Any) -> Tool:
        name: str = described.name

        async def function(**arguments: Any) -> str:
            # Asked for with each call: the one that listed this tool may have been closed since.
            connection = connection_to(self._config)
            # The caller's loop waits; a call that it cancels, as after a timeout, is cancelled here, too.
            called = asyncio.run_coroutine_threadsafe(connection._called(name, arguments), connection._loop)
            return await asyncio.wrap_future(called)

        schema: dict[str, Any] = {"type": "object", "properties": {}, **described.input_schema}
        return Tool(name=name, description=described.description or name, parameters=schema, function=function)

    async def _called(self, name: str, arguments: dict[str, Any]) -> str:
        async def call(client: mcp.Client) -> CallToolResult:
            return await client.call_tool(name, arguments)

        result = await self._asked(call)
        text = _text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    async def _asked(self, ask: Callable[[mcp.Client], Awaitable[Any]]) -> Any:
        """What a live server says.

        Raises:
            ToolError: it refused the request.
            RLinfError: it has ended; the next request starts it again.
        """
        session = await self._live()
        # Without a deadline of its own: that of `tools` ends it, or that of the tool which is called.
        lost = asyncio.ensure_future(session.lost.wait())
        asked = asyncio.ensure_future(ask(session.client))
        try:
            await asyncio.wait({asked, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise self._ended(session.reason)
            return asked.result()
        except mcp.MCPError as error:
            if error.code != _CLOSED and not session.lost.is_set():
                raise ToolError(error.message) from None
            raise self._dropped(session, error) from error
        except (OSError, EOFError) as error:
            raise self._dropped(session, error) from error
        except asyncio.CancelledError:
            # Who asked has given up waiting. A server that does not answer at all would never be begun anew.
            session.look()
            raise
        finally:
            lost.cancel()
            asked.cancel()

    async def _live(self) -> _Session:
        session = self._session
        # No await before it is kept: calls that come meanwhile, or give up waiting, leave one server to those that follow.
        if session is None or session.lost.is_set():
            if session is not None:
                self._former = [each for each in (*self._former, session) if not each.ended.is_set()]
            session = self._session = _Session(self._config)
            session.task = asyncio.ensure_future(session.run())
        await session.begun.wait()
        if session.lost.is_set():
            raise self._ended(session.reason)
        return session

    def _dropped(self, session: _Session, error: Exception) -> RLinfError:
        session.over.set()
        session.lost.set()
        return self._ended(error_text(error))

    def _ended(self, reason: str) -> RLinfError:
        what = " ".join(self._config.command) if self._config.command else str(self._config.url)
        problem = f"has ended, or can't be reached ({reason})"
        return RLinfError(f"MCP server '{self._config.server}' ({what})", problem, "It is begun anew with the next call.")


class _Session:
    """A client from its first message to its last, in one task, as the library's scopes demand."""

    def __init__(self, config: MCP) -> None:
        self._config = config
        self.begun, self.over, self.lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.ended = threading.Event()
        self.reason = ""
        self.client: mcp.Client
        self.looking: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Connects, and keeps the connection until `over`."""
        config = self._config
        target: Any = config.url
        if config.command:
            program, *arguments = config.command
            target = mcp.stdio_client(mcp.StdioServerParameters(command=program, args=arguments, env=dict(config.env)))
        try:
            async with asyncio.timeout(config.start_s) as starting:
                async with mcp.Client(target) as self.client:
                    starting.reschedule(None)
                    self.begun.set()
                    await self.over.wait()
        except TimeoutError:
            self.reason = f"not ready within {config.start_s:g} s"
        except BaseException as error:  # noqa: BLE001  (whatever ends a connection is told to those who wait for it)
            self.reason = _reason(error)
        finally:
            self.lost.set()
            self.begun.set()
            self.ended.set()

    def look(self) -> None:
        """Asks the server whether it is there; if it does not say so, it is lost."""
        if self.looking is None or self.looking.done():
            self.looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(ALIVE_S):
                # Not a ping, which the protocol has given up.
                await self.client.list_tools()
        except TimeoutError:
            self.reason = f"no answer to anything within {ALIVE_S:g} s"
            self.over.set()
            self.lost.set()
        except (mcp.MCPError, OSError, EOFError):
            return  # the next call says what it is


def _reason(error: BaseException) -> str:
    """The first cause in groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error_text(error)


def _part(part: Any) -> str:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, EmbeddedResource) and isinstance(part.resource, TextResourceContents):
        return part.resource.text
    return f"[{part.type} {part.uri}]" if isinstance(part, ResourceLink) else f"[{part.type}]"


def _text(result: CallToolResult) -> str:
    """What a model can read of a result; what is no text is named by its kind."""
    parts = list(map(_part, result.content))
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)

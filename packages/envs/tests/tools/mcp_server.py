"""A real MCP server for tests: `python mcp_server.py` speaks on standard input and output, `python mcp_server.py PORT` by HTTP."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("toy")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def refuse(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
async def wait() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def end() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()

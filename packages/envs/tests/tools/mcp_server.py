"""A real MCP server for tests: `python mcp_server.py` speaks on standard input and output, `python mcp_server.py PORT` by HTTP."""

import asyncio
import os
import signal
import sys

from mcp.server.mcpserver import MCPServer
from mcp.types import EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

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


@server.tool()
def stall() -> str:
    """Stops the server, which is still there and answers nothing."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return ""


@server.tool(structured_output=False)
def show() -> list[TextContent | ImageContent | EmbeddedResource | ResourceLink]:
    """Shows what is no plain text."""
    return [
        TextContent(type="text", text="see"),
        ImageContent(type="image", data="iVBORw==", mime_type="image/png"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a.txt", text="in the file")),
        ResourceLink(type="resource_link", uri="file:///b.txt", name="b"),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()

"""Tools of a real MCP server, started here or reached by HTTP. The tests that end it come last: it takes seconds to start."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.agents import ToolBox, ToolCall, ToolLimits, ToolResult
from rlinf.core.errors import ConfigError
from rlinf.envs.tools.mcp import MCP, close_mcp_servers, connection_to

if find_spec("mcp") is None:
    pytest.skip("needs mcp", allow_module_level=True)
SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO = MCP(command=(sys.executable, SERVER), server="toy")


ONCE = """
import json, os, pathlib, sys
mark = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        version = asked["params"]["protocolVersion"]
        told = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "once", "version": "1"}}
    elif asked["method"] == "tools/list":
        told = {"tools": [{"name": "ask", "description": "Answers.", "inputSchema": {"type": "object", "properties": {}}}]}
    elif asked["method"] != "tools/call":
        told = {}
    elif mark.exists():
        told = {"content": [{"type": "text", "text": "here"}]}
    else:
        mark.touch()
        os._exit(1)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
"""
"""A server that ends with its first call; written without the library, which takes two seconds to import."""


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    close_mcp_servers()


@pytest.fixture(scope="module")
def http() -> Iterator[MCP]:
    # Bound here, too, so that nobody else is given it before the server listens.
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    config = MCP(url=f"http://127.0.0.1:{port}/mcp", server="toy")
    until = time.monotonic() + 120
    while True:
        try:
            config.check("agent.tools[0]")
            break
        except ConfigError:
            assert time.monotonic() < until
            assert process.poll() is None
            close_mcp_servers()
            time.sleep(0.2)
    yield config
    process.kill()
    process.wait(60)
    held.close()


def calls(config: MCP, *asked: tuple[str, dict[str, object]], **limits: float) -> list[ToolResult]:
    box = ToolBox([(tool, ToolLimits(**{"timeout_s": 120, **limits})) for tool in config.build_all()])  # type: ignore[arg-type]

    async def all_of_them() -> list[ToolResult]:
        return [await box.call(ToolCall(name=name, arguments=arguments)) for name, arguments in asked]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_tools_are_listed_checked_and_called(transport: str, request: pytest.FixtureRequest) -> None:
    config: MCP = STDIO if transport == "stdio" else request.getfixturevalue("http")
    config.check("agent.tools[0]")
    add, *others = config.build_all()
    assert (add.name, add.description) == ("add", "Adds two numbers.")
    assert add.schema["function"]["parameters"]["required"] == ["a", "b"]
    assert [tool.name for tool in others] == ["refuse", "wait", "end", "stall", "show"]
    told = calls(config, ("add", {"a": 2, "b": 3}), ("add", {"a": "two", "b": 3}), ("refuse", {"why": "not today"}))
    assert [result.outcome for result in told] == ["ok", "arguments", "error"]
    assert told[0].text == "5"
    assert "argument 'a': expected an integer, found 'two'" in told[1].text
    assert calls(config, ("wait", {}), timeout_s=1)[0].outcome == "timeout"
    assert calls(config, ("add", {"a": 1, "b": 1}))[0].text == "2", "the connection goes on"


def test_what_is_no_plain_text_is_text_or_named() -> None:
    (result,) = calls(STDIO, ("show", {}))
    assert result.text == "see\n[image]\nin the file\n[resource_link file:///b.txt]"


def test_some_tools_under_names_of_their_own() -> None:
    (tool,) = MCP(command=STDIO.command, server="toy", only=("add",), prefix="toy_").build_all()
    assert tool.name == "toy_add"
    assert (
        calls(MCP(command=STDIO.command, server="toy", only=("add",), prefix="toy_"), ("toy_add", {"a": 1, "b": 2}))[0].text == "3"
    )


def test_what_can_not_be_reached_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"command: expected a command or a url, found both or neither"):
        MCP()
    with pytest.raises(ConfigError, match=r"url: expected a server on the loopback interface, found 'http://example\.com/mcp'"):
        MCP(url="http://example.com/mcp")
    with pytest.raises(ConfigError, match=r"tools\[0\]\.command: no program 'no-such-program'"):
        MCP(command=("no-such-program",)).check("tools[0]")
    with pytest.raises(ConfigError, match=r"tools\[0\]\.command: the MCP server 'gone' does not answer"):
        MCP(command=(sys.executable, "-c", "pass"), server="gone").check("tools[0]")
    with pytest.raises(ConfigError, match=r"tools\[0\]\.only: the server 'toy' has no tool 'ad'\. Did you mean 'add'"):
        MCP(command=STDIO.command, server="toy", only=("ad",)).check("tools[0]")


def test_a_tool_goes_on_after_its_server_was_closed() -> None:
    (tool,) = MCP(command=STDIO.command, server="toy", only=("add",)).build_all()
    close_mcp_servers()
    box = ToolBox([(tool, ToolLimits(timeout_s=60))])
    result = asyncio.run(box.call(ToolCall(name="add", arguments={"a": 1, "b": 2})))
    assert (result.text, result.outcome) == ("3", "ok")


def test_a_server_that_ends_is_named_and_begun_anew() -> None:
    ended, after = calls(STDIO, ("end", {}), ("add", {"a": 1, "b": 2}))
    assert ended.outcome == "error"
    assert "MCP server 'toy'" in ended.text
    assert "mcp_server.py" in ended.text
    assert after.text == "3"


def test_a_server_that_hangs_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a call takes too long the server may be well; one that answers nothing else either would fail every call from then on."""
    slow, after = calls(STDIO, ("wait", {}), ("add", {"a": 1, "b": 2}), timeout_s=1)
    connection: Any = connection_to(STDIO)
    session = connection._session
    assert (slow.outcome, after.text) == ("timeout", "3")
    assert session is not None
    assert not session.lost.is_set()
    monkeypatch.setattr("rlinf.envs.tools._mcp.ALIVE_S", 0.1)
    (stalled,) = calls(STDIO, ("stall", {}), timeout_s=0.2)
    until = time.monotonic() + 60
    while not session.lost.is_set():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (stalled.outcome, session.reason) == ("timeout", "no answer to anything within 0.1 s")
    (again,) = calls(STDIO, ("add", {"a": 2, "b": 2}))
    assert again.text == "4"
    close_mcp_servers()
    assert session.ended.is_set(), "the process that hung is left behind"


def test_a_call_is_repeated_on_a_new_server_as_often_as_its_limits_allow(tmp_path: Path) -> None:
    """The first server ends when it is asked; the retry finds the second one, which does not."""
    script = tmp_path / "once.py"
    script.write_text(ONCE)
    (result,) = calls(MCP(command=(sys.executable, str(script), str(tmp_path / "mark")), server="once"), ("ask", {}), retries=1)
    assert (result.text, result.outcome) == ("here", "ok")

"""The tools of MCP servers: one that is started as a process, or one that listens on the loopback interface."""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rlinf.core.agents import Tool
from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError, below, did_you_mean
from rlinf.core.process.shared import Shared
from rlinf.core.registry import require_modules

if TYPE_CHECKING:
    from rlinf.envs.tools._mcp import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class MCP:
    """All tools of an MCP server, or some, by name: `agent.tools: [{type: mcp, command: [python, server.py], retries: 1}]`.

    Each process that calls them has a connection, and with `command` a server, of its own. A server that ends is named in the error
    of the calls that it was working on and begun anew with the next call: with `retries`, before the model knows of it. So is one
    that hangs: if a call has no answer in time, it has a minute to say which tools it has.
    """

    command: tuple[str, ...] = ()
    """A program and its arguments, which speaks MCP on its standard input and output. It runs with your rights: only name one
    that you would start yourself."""
    url: str | None = None
    """In place of `command`: a server that runs already and speaks MCP by HTTP, such as `http://127.0.0.1:8000/mcp`; on the
    loopback interface only."""
    server: str = "mcp"
    """What the log and errors call this server."""
    only: tuple[str, ...] = ()
    """The tools that are wanted, by name; () for all."""
    prefix: str = ""
    """Goes before the name of each tool, where two servers have tools of one name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of the program beside PATH, HOME and a few more; it sees no others of this process."""
    start_s: float = 60.0
    """Seconds within which it has to be ready and to say which tools it has."""

    def __post_init__(self) -> None:
        expect_range("start_s", self.start_s, 0.0, 86400.0, open_low=True)
        if bool(self.command) == (self.url is not None):
            raise ConfigError("command", "expected a command or a url, found both or neither", "Give one of them.")
        if self.url is not None and not _on_loopback(self.url):
            found = f"expected a server on the loopback interface, found '{self.url}'"
            raise ConfigError("url", found, "Run it here, or tunnel to it, and name http://127.0.0.1:PORT/mcp.")

    def check(self, place: str) -> None:
        """Starts the server, or connects, and asks which tools it has.

        Raises:
            ConfigError: there is no such program, it does not answer, or lacks a tool that is wanted.
            MissingExtra: the library `mcp` is not installed.
        """
        require_modules("mcp", place=place, extra="rlinf-envs[mcp]")
        if self.command and shutil.which(self.command[0]) is None:
            raise ConfigError(f"{place}.command", f"no program '{self.command[0]}'", "Give its path, or install it.")
        try:
            self.build_all()
        except ConfigError as error:
            raise below(place, error) from error

    def build(self) -> Tool:
        """The tool, if there is one; see `build_all`.

        Raises:
            ConfigError: there are several.
        """
        found = self.build_all()
        if len(found) != 1:
            raise ConfigError("only", f"expected one tool, found {', '.join(tool.name for tool in found)}", "Call build_all().")
        return found[0]

    def build_all(self) -> Sequence[Tool]:
        """The tools, in the server's order; they share one connection of this process.

        Raises:
            ConfigError: it does not answer, or lacks a tool that is wanted.
        """
        found = connection_to(self).tools()
        names = [tool.name for tool in found]
        for name in self.only:
            if name not in names:
                raise ConfigError(
                    "only", f"the server '{self.server}' has no tool '{name}'", did_you_mean(name, names, label="Tools")
                )
        return [
            Tool(name=f"{self.prefix}{tool.name}", description=tool.description, parameters=tool.parameters, function=tool.function)
            for tool in found
            if not self.only or tool.name in self.only
        ]


_open: Final[Shared[str, Connection]] = Shared()


def connection_to(config: MCP) -> Connection:
    """This process's connection to a server, made by the first who asks; it ends with the process."""
    from rlinf.envs.tools._mcp import Connection

    # Without `only` and `prefix`: a server is shared by those who want different tools of it.
    target = (config.command, config.url, sorted(config.env.items()), config.server, config.start_s)
    return _open.get(repr(target), lambda: Connection(config))


def close_mcp_servers() -> None:
    """Ends the connections of this process, and the servers that it started; the next who asks starts others."""
    _open.close()


def _on_loopback(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return False
    host = parts.hostname or ""
    try:
        # Other names are not looked up: what they stand for may change after the check.
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""The configuration of the endpoint; light to import."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.agents import SessionConfig, ToolFormat
from rlinf.core.config import expect_range, expect_seconds
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import Generator
from rlinf.core.language.problems import Tokenizer

if TYPE_CHECKING:
    from rlinf.engines.endpoint._openai import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEndpointConfig:
    """Serves a policy as OpenAI's chat completions, by the standard library alone: `endpoint.type: openai`."""

    host: str = "127.0.0.1"
    """Where it is bound to; an address of this machine alone unless `allow_remote`."""
    port: int = 0
    """Where it listens; further ranks count up from it; 0 takes a free one."""
    allow_remote: bool = False
    """Whether other machines may reach it; then `api_key_env` is needed."""
    api_key_env: str | None = None
    """The variable of the environment with the key that clients must give; null takes any key."""
    model: str = "policy"
    """The model's name; requests for another one are refused with status 404."""
    aliases: tuple[str, ...] = ()
    """Further names that requests may give it, such as one that an agent has built in."""
    max_concurrent: int = 256
    """Requests that are answered at a time; others wait."""
    max_waiting: int = 1024
    """Requests that wait; more are refused with status 429."""
    request_timeout_s: float = 300.0
    """Seconds of one request, from when it has arrived; then it is refused with status 504, and nothing of it is recorded."""
    max_request_bytes: int = 16 * 2**20
    """The longest body of a request."""
    max_sessions: int = 1024
    """Sessions of clients that opened none; of more, the one that was silent longest is forgotten."""

    max_rated: int = 4096
    """How many rated answers wait to be learned from; with more the oldest is dropped."""

    def __post_init__(self) -> None:
        expect_range("max_rated", self.max_rated, 1, 2**24)
        expect_range("port", self.port, 0, 65535)
        expect_range("max_concurrent", self.max_concurrent, 1, 2**16)
        expect_range("max_waiting", self.max_waiting, 0, 2**20)
        expect_range("max_request_bytes", self.max_request_bytes, 1, 2**31)
        expect_range("max_sessions", self.max_sessions, 1, 2**24)
        expect_seconds("request_timeout_s", self.request_timeout_s)
        if self.allow_remote and self.api_key_env is None:
            raise ConfigError("api_key_env", "expected a key where other machines may reach the endpoint, found null", "Name one.")
        if not self.allow_remote and not _is_loopback(self.host):
            found = f"expected an address of this machine alone, found '{self.host}'"
            raise ConfigError("host", found, "Use 127.0.0.1, or set allow_remote and api_key_env.")

    def check(self, place: str) -> None:
        """Refuses a machine without the key."""
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):
            raise ConfigError(f"{place}.api_key_env", f"the environment has no {self.api_key_env}", "Set it to a key of your own.")

    async def start(
        self, generator: Generator, tokenizer: Tokenizer, form: ToolFormat, *, session: SessionConfig, rank: int = 0
    ) -> Endpoint:
        """A running endpoint on the running event loop; see `rlinf.core.agents.serving.EndpointConfig`.

        Raises:
            ConfigError: there is no key, or the port is taken.
        """
        self.check("endpoint")
        from rlinf.engines.endpoint._openai import Endpoint

        endpoint = Endpoint(self, generator, tokenizer, form, session)
        await endpoint.start(rank)
        return endpoint


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

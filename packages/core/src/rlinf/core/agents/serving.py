"""A policy behind an HTTP endpoint: what is recorded of those who talk to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlinf.core.agents.episodes import Branch
from rlinf.core.agents.formats import ToolFormat
from rlinf.core.data import Completion
from rlinf.core.language.generation import Generator, SamplingConfig
from rlinf.core.language.problems import Tokenizer


class Write(Protocol):
    """Writes for a session."""

    async def __call__(self, prompt: Sequence[int], sampling: SamplingConfig, *, request_id: str) -> Completion[Any]:
        """A completion; an error that it raises ends the request, and is the session's `failure`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How requests of a session are answered."""

    sampling: SamplingConfig
    """How tokens are drawn where a request doesn't say; its `stop_token_ids` end every turn, the tokenizer's end if it has none."""
    fixed: bool = False
    """Whether requests can't change how tokens are drawn, but for `max_tokens`, `n` and `stop`: a policy that is trained is scored
    at one temperature."""
    plain: bool = False
    """Whether messages follow each other as they are, without a chat template, roles or a list of tools."""
    seed: int = 0
    """The source of all randomness of the session."""


class ServedSession(Protocol):
    """All that one client asks for, as turns and branches of one episode."""

    @property
    def base_url(self) -> str:
        """What an OpenAI client is pointed to, so that its requests belong to this session."""
        ...

    @property
    def model(self) -> str:
        """The name that such a client asks for."""
        ...

    @property
    def api_key(self) -> str:
        """The key that such a client gives."""
        ...

    @property
    def failure(self) -> Exception | None:
        """The first error of the engine, which is no fault of the client; None if there was none."""
        ...

    @property
    def rewards(self) -> int:
        """How many rewards clients have given."""
        ...

    def reward(self, value: float, completion: str | None = None) -> None:
        """Gives a turn a reward of its own, in place of an earlier one.

        Args:
            value: what it is worth.
            completion: the id of the answer that it wrote; the last turn if None.

        Raises:
            ConfigError: there is no such answer.
        """
        ...

    def branches(self) -> tuple[Branch, ...]:
        """All that was written so far; what branches share belongs to the first of them."""
        ...

    def close(self) -> None:
        """Forgets it; later requests are refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedAnswer:
    """An answer that a client has rated."""

    branch: Branch
    """The turns up to the answer; those before it are inherited, for each has a rating of its own."""
    reward: float
    """The rating, which the last turn has, too."""
    session: str
    """That of the client."""


class PolicyEndpoint(Protocol):
    """A running endpoint."""

    @property
    def base_url(self) -> str:
        """Where it is, for clients without a session of their own."""
        ...

    @property
    def model(self) -> str:
        """The name that requests give the policy."""
        ...

    def open(self, name: str, config: SessionConfig, *, write: Write | None = None) -> ServedSession:
        """A new session.

        Args:
            name: of letters, digits, `.`, `_` and `-`; unique among those that are open.
            config: how its requests are answered.
            write: writes in place of the endpoint's generator.

        Raises:
            ConfigError: the name can't be part of an address, or is taken.
        """
        ...

    async def rated(self) -> RatedAnswer:
        """The next answer that a client without an opened session has rated; waits for one. Each is given once."""
        ...

    async def close(self) -> None:
        """Ends it, and all requests that are under way."""
        ...


class EndpointConfig(Protocol):
    """A registered endpoint: its parameters, from which it is built."""

    def check(self, place: str) -> None:
        """Refuses early what `start` would refuse late."""
        ...

    async def start(
        self, generator: Generator, tokenizer: Tokenizer, form: ToolFormat, *, session: SessionConfig, rank: int = 0
    ) -> PolicyEndpoint:
        """A running endpoint on the running event loop.

        Args:
            generator: writes; the endpoint does not own it.
            tokenizer: that of the model.
            form: how the model writes calls of tools.
            session: how requests of clients without a session of their own are answered.
            rank: counts ports up from a configured one.
        """
        ...

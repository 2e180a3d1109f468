"""A tool is a typed Python function: its schema comes from its signature and docstring, its limits from whoever uses it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, overload, runtime_checkable

from rlinf.core.agents.schema import Schema, signature_schema, summary
from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError


class ToolError(Exception):
    """What a tool raises to tell the model what is wrong with its call; the text is what the model reads. Never retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model can call."""

    name: str
    """The name under which the model calls it."""
    description: str
    """What it does, for the model."""
    parameters: Schema
    """JSON schema of an object: the arguments."""
    function: Callable[..., Any]
    """Takes the arguments by name; may be async. What it returns becomes text: a str as it is, anything else as JSON."""
    inline: bool = False
    """Whether it is so quick that it runs on the event loop itself, not in a thread; it can't time out then."""

    @staticmethod
    def of(function: Callable[..., Any], *, name: str | None = None, inline: bool = False) -> Tool:
        """A typed function as a tool.

        Args:
            function: with a type for each parameter and a docstring.
            name: by which the model calls it; None for the function's own.
            inline: whether it is so quick that it needs no thread.

        Raises:
            ConfigError: a parameter has no type that JSON has, or there is no docstring.
        """
        called = name or getattr(function, "__name__", "")
        text = summary(inspect.getdoc(function) or "")
        if not text:
            remedy = "Say in a docstring what it does; the model reads it."
            raise ConfigError(f"tool '{called}'", "expected a function with a docstring, found none", remedy)
        parameters = signature_schema(function)
        return Tool(name=called, description=text, parameters=parameters, function=function, inline=inline)

    @property
    def schema(self) -> dict[str, Any]:
        """The description that OpenAI's interface and most chat templates take."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(*, name: str | None = None, inline: bool = False) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, inline: bool = False
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """The decorator that makes a typed function a tool; see `Tool.of`."""
    if function is not None:
        return Tool.of(function)
    return lambda decorated: Tool.of(decorated, name=name, inline=inline)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """What one tool may take."""

    timeout_s: float = 30.0
    """Seconds of one call, including the time in which it waits for a place."""
    max_concurrent: int | None = None
    """Calls that run at one time, over all episodes of a worker; null for any number."""
    retries: int = 0
    """How often a call is repeated that ended with a Python exception; an error that a tool reports to the model (`ToolError`) is
    not repeated."""
    cache: int = 0
    """For how many different arguments answers are kept, so that the same call is not run twice; 0 for none."""
    max_response_length: int = 65536
    """Characters of an answer that the model reads; the middle of a longer one is replaced by how many were left out."""

    def __post_init__(self) -> None:
        expect_range("timeout_s", self.timeout_s, 0.0, 86400.0, open_low=True)
        expect_range("max_concurrent", self.max_concurrent, 1, 2**20)
        expect_range("retries", self.retries, 0, 100)
        expect_range("cache", self.cache, 0, 2**24)
        expect_range("max_response_length", self.max_response_length, 1, 2**31)


class ToolConfig(Protocol):
    """A registered tool: its parameters, from which it is built."""

    def check(self, place: str) -> None:
        """Refuses early what `build` would refuse late, such as a file that is not there."""
        ...

    def build(self) -> Tool:
        """The tool."""
        ...


@runtime_checkable
class HasTools(Protocol):
    """A `ToolConfig` that stands for several tools, such as those of a server."""

    def build_all(self) -> Sequence[Tool]:
        """The tools, in order; in place of `build`."""
        ...


def result_text(value: object) -> str:
    """What a model reads of a value that a tool returned."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


async def awaited(value: object) -> object:
    """A value, or that of an awaitable."""
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value

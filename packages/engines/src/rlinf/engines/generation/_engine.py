"""What an engine that streams tokens is, for `StreamedGenerator`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.language.generation import SamplingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an engine is asked for."""

    tokens: list[int]
    """The prompt, and what was written of the completion."""
    written: int
    """How many of them belong to the completion."""
    sampling: SamplingConfig
    """Its `max_new_tokens` counts those that were written."""
    seed: int
    """Of the completion as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens that came at once."""

    tokens: list[int]
    logprobs: list[float]


class RequestFailed(Exception):
    """Raised by an engine whose other requests go on.

    Attributes:
        error: what the waiting tasks are told.
    """

    def __init__(self, error: RLinfError) -> None:
        super().__init__(error)
        self.error = error


class Engine(Protocol):
    """An engine of text, driven from one event loop."""

    limit: int
    """The longest prompt and response together."""
    vocabulary: int
    """Token ids are below."""

    def stream(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Tokens as they come, at least as many as are asked for; closing it ends the request in the engine."""
        ...

    async def pause(self) -> None:
        """Returns when no forward pass runs."""
        ...

    async def resume(self) -> None:
        """Goes on."""
        ...

    async def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over weights, and forgets what it cached; called while it is paused and has no requests."""
        ...

    async def close(self) -> None:
        """Gives back memory and processes."""
        ...

    def log_tail(self) -> str:
        """The end of the engine's log; "" if there is none."""
        ...


def context_length(asked: int | None, config: Any) -> int:
    """The longest prompt and response together, of a network with a configuration of transformers.

    Raises:
        ConfigError: the network was made for less.
    """
    made: int = config.get_text_config().max_position_embeddings
    if asked is not None and asked > made:
        raise ConfigError("max_model_len", f"the network was made for {made} tokens, found {asked}", "Lower it, or leave it out.")
    return asked or made

"""Generating text: what is asked of an engine, and what an engine is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rlinf.core.config.ranges import expect_at_least, expect_range
from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError

HOTTEST: Final = 100.0
"""The highest temperature: all tokens are equally likely long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn: `rollout.sampling_params`."""

    max_new_tokens: int
    """The longest response."""
    temperature: float = 1.0
    """The number by which logits are divided; 0 takes the most likely token."""
    top_k: int | None = None
    """Only so many of the likeliest tokens can be drawn; None for all."""
    top_p: float = 1.0
    """Only the likeliest tokens that have this probability together can be drawn; 1 for all."""
    stop_token_ids: tuple[int, ...] = ()
    """A response ends with the first of these, which belongs to it."""

    def __post_init__(self) -> None:
        expect_at_least("max_new_tokens", self.max_new_tokens, 1)
        expect_range("temperature", self.temperature, 0.0, HOTTEST)
        expect_at_least("top_k", self.top_k, 1, "Leave it out for all tokens.")
        expect_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        below = [token for token in self.stop_token_ids if token < 0]
        if below:
            raise ConfigError("stop_token_ids", f"expected token ids from 0 on, found {below[0]}")


class Generator(Protocol):
    """Writes text: token ids in, token ids out. All requests in flight share its forward passes.

    Log-probabilities are those of the tempered distribution before `top_k` and `top_p` cut it, as a trainer re-scores them; at
    temperature 0 those of temperature 1.
    """

    @property
    def version(self) -> int:
        """That of the weights."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that were asked for and have neither returned nor been cancelled."""
        ...

    @property
    def cached_tokens(self) -> int | None:
        """Tokens whose keys and values are held for requests in flight, 0 without any; None if the engine doesn't say."""
        ...

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Any]:
        """A completion of one prompt.

        Args:
            prompt: at least one token id.
            sampling: how tokens are drawn.
            seed: the source of all randomness of this completion; the same seed and weights draw the same tokens.
            request_id: by which it can be aborted; unique among those in flight.
            partial: what an aborted request had written; it is gone on with, its tokens, log-probabilities and versions are
                kept, and `max_new_tokens` counts them.

        Raises:
            ConfigError: the prompt is empty, prompt and response can be longer than the engine's context, or `request_id` is in
                flight already.
            RLinfError: a forward pass failed; all requests that were in flight fail with that cause.
        """
        ...

    def abort(self, request_ids: Collection[str] | None = None) -> None:
        """Ends requests, all if None: each returns what it has, `finish` "abort". Unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Returns when no forward pass runs; requests wait until `resume`."""
        ...

    async def resume(self) -> None:
        """Goes on."""
        ...

    async def load(self, weights: Weights[Any]) -> None:
        """Takes over weights between two forward passes; requests in flight go on with them, and nothing cached is used again."""
        ...

    async def close(self) -> None:
        """Aborts what is in flight and gives back memory and processes."""
        ...


class GeneratorConfig(Protocol):
    """A registered generator: its parameters, from which it is built."""

    def check(self, place: str) -> None:
        """Refuses early what `build` would refuse late, such as an engine that is not installed."""
        ...

    def build(self, policy: Any, *, rank: int, world_size: int) -> Generator:
        """A generator with a policy's weights.

        Args:
            policy: a `rlinf.core.capabilities.LanguageModelPolicy`; the generator owns it from now on.
            rank: 0 … world_size − 1, for ports and folders of its own.
            world_size: how many generators there are; they don't know of each other.
        """
        ...

"""A client of a server that speaks OpenAI's completions, with token ids."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urljoin

import openai

from rlinf.core.capabilities import Writing
from rlinf.core.data import Completion, Weights
from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError, WeightSyncError
from rlinf.core.generation import SamplingConfig
from rlinf.core.random import keyed_seed
from rlinf.engines.generation._openai_flight import Flight
from rlinf.engines.generation.openai import OpenAIGeneratorConfig


class OpenAIGenerator:
    """See `OpenAIGeneratorConfig`; a `rlinf.core.generation.Generator` of one event loop.

    Responses are streamed. A pause closes the streams and keeps what they brought; afterwards the server is asked to go on from
    there, which is how weights change in flight.
    """

    def __init__(self, config: OpenAIGeneratorConfig, policy: Any, *, rank: int) -> None:
        self._config: Final = config
        self._policy: Final[object] = policy
        self._rank: Final = rank
        self._key: Final = os.environ[config.api_key_env] if config.api_key_env else "none"
        self._client: Final = openai.AsyncOpenAI(
            base_url=config.base_url, api_key=self._key, timeout=config.timeout_s, max_retries=config.max_retries
        )
        self._version: int = policy.version if isinstance(policy, Writing) else 0
        self._flying: Final[dict[object, Flight]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._closed = False

    @property
    def version(self) -> int:
        """That of the weights."""
        return self._version

    @property
    def in_flight(self) -> int:
        """Requests that somebody waits for."""
        return len(self._flying)

    @property
    def cached_tokens(self) -> int | None:
        """None: the server doesn't say."""
        return None

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Any]:
        """A completion of one prompt; see `rlinf.core.generation.Generator`. Its arrays are NumPy's.

        Raises:
            ConfigError: the server refuses the request, or its log-probabilities would not be what the protocol promises.
            DeadlineExceeded: the server took longer than `timeout_s`.
            RLinfError: the server fails, or does not give token ids.
        """
        flight = Flight(list(prompt), sampling, seed, partial)
        name = object() if request_id is None else request_id
        self._check(flight, name)
        self._flying[name] = flight
        try:
            while flight.finish is None:
                await flight.reading(self._read(flight) if self._open.is_set() else self._open.wait())
        finally:
            del self._flying[name]
        return flight.completion()

    def _check(self, flight: Flight, name: object) -> None:
        sampling, limit = flight.sampling, self._config.max_model_len
        if self._closed:
            raise ConfigError("generate", "the generator is closed")
        if not flight.prompt:
            raise ConfigError("generate(prompt)", "expected at least one token, found none")
        if limit is not None and len(flight.prompt) + sampling.max_new_tokens > limit:
            found = f"{len(flight.prompt)} tokens and {sampling.max_new_tokens} new ones are more than {limit}"
            raise ConfigError("generate(prompt)", found, "Lower max_new_tokens.")
        if name in self._flying:
            raise ConfigError("generate(request_id)", f"'{name}' is in flight already", "Give each request its own.")
        if not self._config.tempered_logprobs and sampling.temperature not in (0, 1):
            found = f"the server reports log-probabilities at temperature 1, found {sampling.temperature:g}"
            raise ConfigError("temperature", found, "Set tempered_logprobs, and have the server report processed ones.")
        if self._config.tempered_logprobs and (sampling.top_k is not None or sampling.top_p < 1):
            raise ConfigError("top_k", "a server that reports processed log-probabilities would renormalise them", "Cut nothing.")

    async def _read(self, flight: Flight) -> None:
        """Asks the server to go on until the response is whole."""
        failures = 0
        try:
            async with asyncio.timeout(self._config.timeout_s):
                while flight.finish is None:
                    try:
                        await self._stream(flight)
                    except (openai.APIConnectionError, openai.InternalServerError) as error:
                        failures += 1
                        if failures > self._config.max_retries:
                            raise self._failure(error) from None
        except TimeoutError:
            raise DeadlineExceeded(
                "generate", f"no whole response of '{self._config.model}' in {self._config.timeout_s:g} s"
            ) from None
        except openai.APIStatusError as error:
            raise self._failure(error) from None

    def _failure(self, error: openai.OpenAIError) -> RLinfError:
        """What happened, without the key."""
        told = f"{type(error).__name__}: {error}".replace(self._key, "***")
        if isinstance(error, openai.APIStatusError) and error.status_code < 500:
            return ConfigError("generate", f"the server at {self._config.base_url} refuses: {told}")
        return RLinfError("generate", f"the server at {self._config.base_url} fails: {told}")

    async def _stream(self, flight: Flight) -> None:
        s, done = flight.sampling, len(flight.tokens)
        extra: dict[str, Any] = {"stop_token_ids": list(s.stop_token_ids), "ignore_eos": True, "return_token_ids": True}
        if s.top_k is not None:
            extra["top_k"] = s.top_k
        stream = await self._client.completions.create(
            model=self._config.model,
            prompt=[*flight.prompt, *flight.tokens],
            max_tokens=s.max_new_tokens - done,
            temperature=s.temperature,
            top_p=s.top_p,
            seed=flight.seed if done == 0 else keyed_seed(flight.seed, "openai", done),
            logprobs=1,
            stream=True,
            extra_body=extra,
        )
        async with stream:
            async for part in stream:
                for choice in part.choices:
                    found = choice.logprobs.token_logprobs if choice.logprobs is not None else None
                    flight.add((choice.model_extra or {}).get("token_ids"), found, self._version)
        if flight.finish is None and len(flight.tokens) == done:
            raise RLinfError("generate", f"the server at {self._config.base_url} ends a response without a token or a stop token")

    def abort(self, request_ids: Collection[str] | None = None) -> None:
        """Ends requests, all if None; see `rlinf.core.generation.Generator`."""
        for name in list(self._flying) if request_ids is None else request_ids:
            flight = self._flying.get(name)
            if flight is not None:
                flight.abort()

    async def pause(self) -> None:
        """Closes the streams; what they brought is kept."""
        self._open.clear()
        await asyncio.gather(*(flight.interrupted() for flight in list(self._flying.values())))

    async def resume(self) -> None:
        """Asks the server to go on."""
        self._open.set()

    async def load(self, weights: Weights[Any]) -> None:
        """Writes weights to the shared folder and has the server take them over; requests in flight go on with them.

        Raises:
            ConfigError: no update endpoint is configured, or the policy can't write its network.
            WeightSyncError: the server didn't take them.
        """
        config, policy = self._config, self._policy
        if config.update_path is None or config.update_folder is None:
            raise ConfigError("update_path", "the server's own update endpoint is not configured", "Set it and update_folder.")
        if not isinstance(policy, Writing):
            raise ConfigError("load", f"expected a policy that writes text, found {type(policy).__name__}", "Use causal_lm.")
        policy.load(weights)
        folder = Path(config.update_folder).absolute() / f"rank_{self._rank}"
        policy.save_network(folder)
        was_open = self._open.is_set()
        await self.pause()
        try:
            url = urljoin(config.base_url, config.update_path)
            answer: Any = await self._client.post(url, cast_to=object, body={"model_path": str(folder)})
        except openai.OpenAIError as error:
            raise WeightSyncError("load", f"{self._failure(error).problem}", "The old weights are still there.") from None
        finally:
            if was_open:
                await self.resume()
        if isinstance(answer, dict) and cast("dict[str, Any]", answer).get("success") is False:
            raise WeightSyncError("load", f"the server did not take the weights over: {answer}", "The old weights are still there.")
        self._version = weights.version

    async def close(self) -> None:
        """Aborts what is in flight, and closes the connections."""
        self._closed = True
        self.abort()
        await self._client.close()

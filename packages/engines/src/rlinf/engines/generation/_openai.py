"""A server that speaks OpenAI's completions, with token ids, as an engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urljoin

import openai
from openai.types import Completion as Part
from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, RLinfError, WeightSyncError, error_text
from rlinf.core.random import keyed_seed
from rlinf.engines.generation._engine import Asked, Piece, RequestFailed
from rlinf.engines.generation._streamed import StreamedGenerator
from rlinf.engines.generation.openai import OpenAIGeneratorConfig

CLIENT_S = 60.0
"""How long the library's client may take to be made, and to find out by itself that nothing comes."""


def build(config: OpenAIGeneratorConfig, policy: Any, rank: int) -> StreamedGenerator:
    async def start() -> OpenAIEngine:
        return OpenAIEngine(config, policy, rank)

    def tensors(weights: Weights[Any]) -> Mapping[str, Tensor]:
        if config.update_path is None:
            raise ConfigError("update_path", "the server's own update endpoint is not configured", "Set it and update_folder.")
        if not isinstance(policy, LanguageModelPolicy):
            raise ConfigError("load", f"expected a policy that writes text, found {type(policy).__name__}", "Use causal_lm.")
        policy.load(weights)
        return {}  # the policy writes its folder itself

    version: int = policy.version if isinstance(policy, LanguageModelPolicy) else 0
    return StreamedGenerator(start(), version, tensors, timeout_s=config.timeout_s, start_timeout_s=CLIENT_S)


class OpenAIEngine:
    """An `Engine` over somebody's server. A pause closes the streams, and leaves the server to its other clients."""

    def __init__(self, config: OpenAIGeneratorConfig, policy: Any, rank: int) -> None:
        self._config: Final = config
        self._policy: Final[Any] = policy
        self._rank: Final = rank
        self._key: Final = os.environ[config.api_key_env] if config.api_key_env else ""
        later = config.timeout_s + CLIENT_S  # the wait for a token ends first, and says what was waited for
        self._client: Final = openai.AsyncOpenAI(
            base_url=config.base_url, api_key=self._key or "none", timeout=later, max_retries=config.max_retries
        )
        self.limit = config.max_model_len or sys.maxsize
        self.vocabulary = sys.maxsize

    async def stream(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Tokens as they come; the server is asked to go on where a connection was lost."""
        self._refuse(asked)
        so_far, failures = list(asked.tokens), 0
        while True:
            before = len(so_far)
            try:
                async with contextlib.aclosing(self._read(asked, so_far)) as pieces:
                    async for piece in pieces:
                        so_far += piece.tokens
                        yield piece
            except openai.APIConnectionError as error:
                failures += 1
                # Where nothing came, the library's client has asked as often as it may.
                if len(so_far) == before or failures > self._config.max_retries:
                    raise RequestFailed(self._failure(error)) from None
                continue
            except openai.APIStatusError as error:
                raise RequestFailed(self._failure(error)) from None
            if len(so_far) == before:
                problem = f"the server at {self._config.base_url} ends a response without a token or a stop token"
                raise RequestFailed(RLinfError("generate", problem))

    def _refuse(self, asked: Asked) -> None:
        sampling = asked.sampling
        if not self._config.tempered_logprobs and sampling.temperature not in (0, 1):
            found = f"the server reports log-probabilities at temperature 1, found {sampling.temperature:g}"
            remedy = "Set tempered_logprobs, and have the server report processed ones."
            raise RequestFailed(ConfigError("temperature", found, remedy))
        if self._config.tempered_logprobs and (sampling.top_k is not None or sampling.top_p < 1):
            problem = "a server that reports processed log-probabilities would renormalise them"
            raise RequestFailed(ConfigError("top_k", problem, "Cut nothing."))

    async def _read(self, asked: Asked, so_far: list[int]) -> AsyncGenerator[Piece]:
        """Pieces of one answer; a task reads it, because a generator of the library's that is left half-way ends in any thread."""
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        reader = asyncio.create_task(self._fill(pieces, asked, so_far))
        try:
            # Ends with the reader, however that ends; how long the server may be silent is the client's timeout.
            while (piece := await pieces.get()) is not None:
                yield piece
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _fill(self, pieces: asyncio.Queue[Piece | None], asked: Asked, so_far: list[int]) -> None:
        try:
            async with await self._ask(asked, so_far) as stream:
                async for part in stream:
                    for choice in part.choices:
                        found = choice.logprobs.token_logprobs if choice.logprobs is not None else None
                        pieces.put_nowait(_piece((choice.model_extra or {}).get("token_ids") or [], found or []))
        finally:
            pieces.put_nowait(None)

    async def _ask(self, asked: Asked, so_far: list[int]) -> openai.AsyncStream[Part]:
        s, done = asked.sampling, asked.written + len(so_far) - len(asked.tokens)
        extra: dict[str, Any] = {"stop_token_ids": list(s.stop_token_ids), "ignore_eos": True, "return_token_ids": True}
        if s.top_k is not None:
            extra["top_k"] = s.top_k
        return await self._client.completions.create(
            model=self._config.model,
            prompt=list(so_far),
            max_tokens=s.max_new_tokens - done,
            temperature=s.temperature,
            top_p=s.top_p,
            # With the same seed, what goes on would be drawn from the same numbers as the beginning.
            seed=asked.seed if done == 0 else keyed_seed(asked.seed, "openai", done),
            logprobs=1,
            stream=True,
            extra_body=extra,
        )

    def _failure(self, error: openai.OpenAIError) -> RLinfError:
        """What happened, without the key."""
        told = error_text(error)
        if self._key:
            told = told.replace(self._key, "***")
        if isinstance(error, openai.APIStatusError) and error.status_code < 500:
            return ConfigError("generate", f"the server at {self._config.base_url} refuses: {told}")
        return RLinfError("generate", f"the server at {self._config.base_url} fails: {told}")

    async def pause(self) -> None:
        """The streams are closed already."""

    async def resume(self) -> None:
        """Nothing to do."""

    async def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes the policy's network, which has the new weights already, to the shared folder, and has the server take it over.

        Raises:
            WeightSyncError: the server didn't take it.
        """
        config = self._config
        folder = Path(cast("str", config.update_folder)).absolute() / f"rank_{self._rank}"
        self._policy.save_network(folder)
        try:
            # A path that begins with a slash leaves the `/v1` of `base_url` behind.
            url = urljoin(config.base_url, cast("str", config.update_path))
            answer: Any = await self._client.post(url, cast_to=object, body={"model_path": str(folder)})
        except openai.OpenAIError as error:
            raise WeightSyncError("load", f"{self._failure(error).problem}", "The old weights are still there.") from None
        if isinstance(answer, dict) and cast("dict[str, Any]", answer).get("success") is False:
            raise WeightSyncError("load", f"the server did not take the weights over: {answer}", "The old weights are still there.")

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def log_tail(self) -> str:
        """The server keeps its log to itself."""
        return ""


def _piece(tokens: list[int], logprobs: list[float]) -> Piece:
    """A part of a stream.

    Raises:
        RequestFailed: the server gives no token ids, or not one log-probability for each.
    """
    if len(tokens) != len(logprobs):
        problem = f"expected a token id and a log-probability for each token, found {len(tokens)} and {len(logprobs)}"
        raise RequestFailed(RLinfError("generate", problem, "The server must know `return_token_ids` and `logprobs`."))
    return Piece(tokens=tokens, logprobs=logprobs)

"""One request for text, while it is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlinf.core.arrays import as_numpy
from rlinf.core.data import Completion
from rlinf.core.generation import SamplingConfig
from rlinf.core.problems import ShownPrompt
from rlinf.engines.generation._hf_sampling import uniforms

Finish = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and what was written after it."""

    id: object
    prompt: list[int]
    sampling: SamplingConfig
    uniforms: list[float]
    """One for each position of the response."""
    stops: frozenset[int]
    future: asyncio.Future[Completion[Tensor]]
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    prefix: bytes = b""
    """All tokens of the prompt but the last, and its pictures: what completions of the same prompt share in the cache."""
    sight: ShownPrompt | None = None
    """What the prompt shows; None for text."""
    shift: int = 0
    """By how much the positions of what follows the prompt differ from its columns; known once the prompt was read."""

    @property
    def cached(self) -> int:
        """Columns of its row: every token but the last one, which the next pass takes."""
        return len(self.prompt) + len(self.tokens) - 1

    @property
    def last(self) -> int:
        """The token that the next pass takes."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def add(self, token: int, logprob: float, version: int) -> Finish | None:
        """Takes a token over, and says whether it was the last one."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return self.finish

    @property
    def finish(self) -> Finish | None:
        """Why nothing more is to be written; None if something is."""
        if self.tokens and self.tokens[-1] in self.stops:
            return "stop"
        return "length" if len(self.tokens) >= self.sampling.max_new_tokens else None

    def end(self, finish: Finish) -> None:
        """Hands what was written to who waits for it."""
        if not self.future.done():
            self.future.set_result(
                Completion(
                    tokens=torch.tensor(self.tokens, dtype=torch.long),
                    logprob=torch.tensor(self.logprobs, dtype=torch.float32),
                    version=torch.tensor(self.versions, dtype=torch.long),
                    finish=finish,
                )
            )

    def fail(self, error: Exception) -> None:
        """Hands the cause of a fault to who waits."""
        if not self.future.done():
            self.future.set_exception(error)


def new_request(
    prompt: Sequence[int] | ShownPrompt,
    sampling: SamplingConfig,
    *,
    seed: int,
    request_id: str | None,
    partial: Completion[Any] | None,
) -> Request:
    """A request of the running event loop."""
    sight = prompt if isinstance(prompt, ShownPrompt) and len(prompt.at) else None
    tokens = prompt.tokens if isinstance(prompt, ShownPrompt) else prompt
    request = Request(
        id=object() if request_id is None else request_id,
        prompt=[int(token) for token in tokens],
        sampling=sampling,
        uniforms=uniforms(seed, sampling.max_new_tokens),
        stops=frozenset(sampling.stop_token_ids),
        future=asyncio.get_running_loop().create_future(),
    )
    request.prefix = np.asarray(request.prompt[:-1], dtype=np.int64).tobytes()
    if sight is not None:
        request.sight = sight
        request.prefix += b"".join(np.ascontiguousarray(sight.shown[name]).tobytes() for name in sorted(sight.shown))
    if partial is not None:
        request.tokens = as_numpy(partial.tokens).tolist()
        request.logprobs = as_numpy(partial.logprob).tolist()
        request.versions = as_numpy(partial.version).tolist()
    return request

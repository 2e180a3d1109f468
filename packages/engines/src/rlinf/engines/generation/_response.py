"""What was written after a prompt, and the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor

from rlinf.core.data import Completion
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig

Finish = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False, kw_only=True)
class Response:
    """A prompt and what was written after it."""

    id: object
    prompt: list[int]
    sampling: SamplingConfig
    seed: int
    future: asyncio.Future[Completion[Tensor]]
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    @classmethod
    def asked(
        cls, prompt: Sequence[int], sampling: SamplingConfig, *, seed: int, request_id: str | None, partial: Completion[Any] | None
    ) -> Self:
        """One for the running event loop, with what an aborted one had written."""
        response = cls(
            # Equal to no name that a caller may give.
            id=object() if request_id is None else request_id,
            prompt=[int(token) for token in prompt],
            sampling=sampling,
            seed=seed,
            future=asyncio.get_running_loop().create_future(),
        )
        if partial is not None:
            arrays = (as_numpy(array).tolist() for array in (partial.tokens, partial.logprob, partial.version))
            response.tokens, response.logprobs, response.versions = arrays
        return response

    @property
    def finish(self) -> Finish | None:
        """Why nothing more is to be written; None if something is."""
        if self.tokens and self.tokens[-1] in self.sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.sampling.max_new_tokens else None

    def add(self, token: int, logprob: float, version: int) -> Finish | None:
        """Takes a token over, and says whether it was the last one."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return self.finish

    def check(self, *, limit: int, vocabulary: int) -> None:
        """Refuses what an engine would refuse late, or not at all.

        Raises:
            ConfigError: the prompt is empty, too long, or has tokens that the network doesn't know.
        """
        if not self.prompt:
            raise ConfigError("generate(prompt)", "expected at least one token, found none")
        if len(self.prompt) + self.sampling.max_new_tokens > limit:
            found = f"{len(self.prompt)} tokens and {self.sampling.max_new_tokens} new ones are more than {limit}"
            raise ConfigError("generate(prompt)", found, "Lower max_new_tokens, or raise rollout.max_model_len.")
        wrong = [token for token in (*self.prompt, *self.tokens) if not 0 <= token < vocabulary]
        if wrong:
            raise ConfigError("generate(prompt)", f"expected tokens in [0, {vocabulary}), found {wrong[0]}")

    def end(self, finish: Finish) -> None:
        """Hands what was written to the waiting task."""
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
        """Hands the cause of a fault to the waiting task."""
        if not self.future.done():
            self.future.set_exception(error)

"""The engine that is examined, the oracle that it is compared with, and how every line of the contract asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlinf.core.data import Completion, Weights
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.language.generation import Generator, SamplingConfig

Score = Callable[[Sequence[int], Sequence[int]], tuple[Any, Any]]
"""Teacher forcing of a prompt and a response of length L: log-probabilities `[L]` of its tokens, and the likeliest tokens `[L]`."""
Update = Callable[[int], tuple[Weights[Any], Score]]
"""Makes other weights of a version, and what scores with them."""


@dataclass(kw_only=True)
class GeneratorSubject:
    """A generator, and an oracle for what it writes.

    Attributes:
        generator: what is examined; nothing is in flight.
        score: the oracle for the weights that it has.
        update: makes other weights for it; None for an engine that can't take any over, whose lines are then skipped.
        vocabulary: prompts are made of tokens below.
        max_model_len: the longest prompt and response together; at least 64.
        temperature: that of the oracle.
        tolerance: the largest difference between log-probabilities that must agree; 1e-4 is for float32, and whoever computes in
            bfloat16 says what to expect of it.
        draws: how many tokens are counted to see what they are drawn from.
        deadline_s: seconds that one line may take.
    """

    generator: Generator
    score: Score
    update: Update | None
    vocabulary: int
    max_model_len: int
    temperature: float = 1.0
    tolerance: float = 1e-4
    draws: int = 512
    deadline_s: float = 120.0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7), init=False, repr=False)

    def prompt(self, length: int) -> list[int]:
        """Random tokens."""
        return self._random.integers(0, self.vocabulary, size=length).tolist()

    def sampling(self, new: int, **changed: Any) -> SamplingConfig:
        """The oracle's temperature and so many new tokens, unless something else is said."""
        return replace(SamplingConfig(max_new_tokens=new, temperature=self.temperature), **changed)

    async def ask(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int = 0,
        request_id: str | None = None,
        partial: Completion[Any] | None = None,
    ) -> Completion[Any]:
        """A completion, after a look at its form."""
        found = await self.generator.generate(prompt, sampling, seed=seed, request_id=request_id, partial=partial)
        sound(found, sampling)
        return found

    async def together(self, asked: Sequence[Coroutine[Any, Any, Completion[Any]]]) -> list[Completion[Any]]:
        """Several at once; if one fails, the others are cancelled."""
        tasks = [asyncio.ensure_future(one) for one in asked]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            # So that nothing of them is in flight any more when somebody looks.
            await asyncio.wait(tasks)

    def agrees(self, prompt: Sequence[int], found: Completion[Any], *, since: int = 0, until: int | None = None) -> None:
        """Compares the log-probabilities of a part of a completion with the oracle's."""
        expected = np.asarray(self.score(prompt, tokens_of(found))[0])[since:until]
        gap = np.abs(expected - as_numpy(found.logprob)[since:until])
        # Not `>`, which is false of what is no number.
        if gap.size and not float(gap.max()) <= self.tolerance:
            at = int(gap.argmax())
            told = f"{expected[at]:.6f} (within {self.tolerance:g}), found {as_numpy(found.logprob)[since + at]:.6f}"
            raise ContractError(f"Completion.logprob[{since + at}]", f"expected what teacher forcing gives, {told}")

    def likeliest(self, prompt: Sequence[int], found: Completion[Any]) -> None:
        """Compares the tokens of a completion with the oracle's likeliest; those that are as likely will do."""
        tokens = tokens_of(found)
        best = np.asarray(self.score(prompt, tokens)[1]).tolist()
        for at, (token, other) in enumerate(zip(tokens, best, strict=True)):
            if token == other:
                continue
            pair = [float(np.asarray(self.score(prompt, [*tokens[:at], x])[0])[at]) for x in (token, other)]
            if pair[1] - pair[0] > self.tolerance:
                told = f"{other} with log-probability {pair[1]:.6f}, found {token} with {pair[0]:.6f}"
                raise ContractError(f"Completion.tokens[{at}]", f"expected the likeliest, {told}")


def tokens_of(found: Completion[Any]) -> list[int]:
    """The tokens as plain numbers."""
    return as_numpy(found.tokens).tolist()


def sound(found: Completion[Any], sampling: SamplingConfig) -> None:
    """Refuses a completion that contradicts itself, or what was asked for."""
    tokens, logprob, version = (as_numpy(array) for array in (found.tokens, found.logprob, found.version))
    if not tokens.shape == logprob.shape == version.shape == (len(tokens),):
        shapes = f"{tokens.shape}, {logprob.shape} and {version.shape}"
        raise ContractError("Completion", f"expected [L] tokens, log-probabilities and versions, found {shapes}")
    # Rounding may bring the logarithm of a certain token a little above 0.
    if not np.isfinite(logprob).all() or (logprob > 1e-6).any():
        raise ContractError("Completion.logprob", f"expected finite numbers up to 0, found {logprob.tolist()}")
    stops = np.isin(tokens, sampling.stop_token_ids)
    if stops[:-1].any():
        raise ContractError("Completion.tokens", "expected nothing after a stop token, found tokens behind it")
    full = len(tokens) == sampling.max_new_tokens
    if len(tokens) > sampling.max_new_tokens or (found.finish == "length" and not full):
        told = f"finish '{found.finish}' after {len(tokens)} tokens of {sampling.max_new_tokens}"
        raise ContractError("Completion.finish", f"expected 'length' when the response is as long as allowed, found {told}")
    if (found.finish == "stop") != bool(stops[-1:].any()):
        raise ContractError("Completion.finish", f"expected 'stop' exactly if a stop token is the last, found '{found.finish}'")

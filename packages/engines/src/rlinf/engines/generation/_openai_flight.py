"""One response of a server, while it is being written."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.data import Completion
from rlinf.core.errors import RLinfError
from rlinf.core.generation import SamplingConfig


class Flight:
    """What is asked for, and what has come of it.

    Args:
        prompt: token ids.
        sampling: how tokens are drawn.
        seed: sent to the server.
        partial: what had been written before.
    """

    def __init__(self, prompt: list[int], sampling: SamplingConfig, seed: int, partial: Completion[Any] | None) -> None:
        self.prompt, self.sampling, self.seed = prompt, sampling, seed
        self.tokens: list[int] = []
        self.finish: Literal["stop", "length", "abort"] | None = None
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._reader: asyncio.Future[object] | None = None
        self._stopped = False
        if partial is not None:
            columns = zip(*(as_numpy(a).tolist() for a in (partial.tokens, partial.logprob, partial.version)), strict=True)
            for token, logprob, version in columns:
                self.add([token], [logprob], version)

    def add(self, tokens: list[int] | None, logprobs: list[float] | None, version: int) -> None:
        """Takes a part over.

        Raises:
            RLinfError: the server gives no token ids, or not one log-probability for each.
        """
        found = tokens or []
        if logprobs and len(found) != len(logprobs):
            problem = f"expected a token id and a log-probability for each token, found {len(found)} and {len(logprobs)}"
            raise RLinfError("generate", problem, "The server must know `return_token_ids` and `logprobs`.")
        if found and not logprobs:
            raise RLinfError("generate", "expected log-probabilities, found none", "The server must know `logprobs`.")
        for token, logprob in zip(found, logprobs or [], strict=True):
            if self.finish is None:
                self.tokens.append(token)
                self._logprobs.append(logprob)
                self._versions.append(version)
                if token in self.sampling.stop_token_ids:
                    self.finish = "stop"
                elif len(self.tokens) == self.sampling.max_new_tokens:
                    self.finish = "length"

    async def reading(self, read: Coroutine[Any, Any, object]) -> None:
        """Reads, or waits, until it is done, or an abort or a pause comes."""
        self._stopped = False
        self._reader = asyncio.ensure_future(read)
        try:
            await self._reader
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        finally:
            self._reader = None

    def _stop(self) -> None:
        if self._reader is not None:
            self._stopped = True
            self._reader.cancel()

    def abort(self) -> None:
        """Ends it with what there is."""
        self.finish = self.finish or "abort"
        self._stop()

    async def interrupted(self) -> None:
        """Closes the stream, and returns when it is closed."""
        reader = self._reader
        self._stop()
        if reader is not None:
            await asyncio.wait([reader])

    def completion(self) -> Completion[np.ndarray[Any, Any]]:
        """What was written."""
        return Completion(
            tokens=np.array(self.tokens, dtype=np.int64),
            logprob=np.array(self._logprobs, dtype=np.float32),
            version=np.array(self._versions, dtype=np.int64),
            finish=self.finish or "error",
        )

"""The rows that are written together: reading prompts into them, and writing one token for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from rlinf.core.errors import NonFiniteError
from rlinf.engines.generation._sampling import Cuts, cuts, draw
from rlinf.engines.generation.hf._cache import SlotCache
from rlinf.engines.generation.hf._images import Inputs, seen_context
from rlinf.engines.generation.hf._request import Finish, Request

_BLOCK: Final = 16
"""Attention is given a multiple of so many columns."""
_AXES: Final = 3
"""Positions of a token: along frames, rows and columns of pictures; one that comes before them only parts packed sequences."""


class Batch:
    """Requests in rows 0 … n − 1, without gaps, and what the network remembers of each.

    The cache of a row holds all tokens but the last; a pass that writes takes that one, so that prompts need no logits of their
    own, and what was read of a prompt serves all its completions.

    Args:
        network: a causal language model of transformers.
        rows: how many there can be.
        limit: the longest row.
        max_batch_tokens: how much is read in one pass.
        inputs: what the network is given of rows with pictures; None if it can't look at any.
    """

    def __init__(self, network: Any, *, rows: int, limit: int, max_batch_tokens: int, inputs: Inputs | None = None) -> None:
        self.requests: Final[list[Request]] = []
        self._network: Any = network
        self._inputs = inputs
        self.rows: Final = rows
        self._limit, self._max_batch_tokens = limit, max_batch_tokens
        self.device: Final[torch.device] = next(network.parameters()).device
        own = network.config.get_text_config()
        self.vocabulary: Final[int] = network.get_input_embeddings().weight.shape[0]
        self._cache: Final = SlotCache(own.num_hidden_layers, rows, self.device)
        self.dtype: Final[torch.dtype] = next(network.parameters()).dtype
        self._mask = torch.empty(0, dtype=self.dtype, device=self.device)
        self._row: Final = torch.arange(rows, device=self.device)
        self._last = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._length = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._shift = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._cuts: Cuts | None = None
        self._stale = False
        self._largest = self._widest = 0

    def largest_cache(self) -> int:
        """Bytes of keys, values and mask at the most since this was asked last."""
        largest, self._largest, self._widest = self._largest, 0, 0
        return largest

    @property
    def cached_tokens(self) -> int:
        """Tokens that are remembered for the requests."""
        return sum(request.cached for request in self.requests)

    def forget(self) -> None:
        """The weights are others: what is remembered is read again before the next token."""
        self._stale = True

    def admit(self, waiting: Sequence[Request]) -> int:
        """Takes requests in, in their order, as many as there are rows and as one pass can read; returns how many."""
        if not waiting or len(self.requests) == self.rows:
            return 0
        rows = {request.prefix: row for row, request in enumerate(self.requests)}
        read: list[Request] = []
        share: list[tuple[Request, int | Request]] = []
        fresh: dict[bytes, Request] = {}
        width = taken = 0
        for request in waiting[: self.rows - len(self.requests)]:
            # A request that goes on has tokens of its own behind the prompt, which no other row holds.
            source = None if request.tokens or not request.prefix else rows.get(request.prefix, fresh.get(request.prefix))
            if source is None:
                width = max(width, request.cached)
                # At least one is read, however long it is.
                if read and width * (len(read) + 1) > self._max_batch_tokens:
                    break
                read.append(request)
                if not request.tokens:
                    fresh[request.prefix] = request
            else:
                share.append((request, source))
            taken += 1
        if taken:
            self._enter(read, share)
        return taken

    def _enter(self, read: list[Request], share: list[tuple[Request, int | Request]]) -> None:
        first = len(self.requests)
        self.requests.extend(read)
        self._reserve(max(request.cached for request in [*read, *(request for request, _ in share)]) + 1)
        self._read(first, read)
        for request, source in share:
            row = len(self.requests)
            self.requests.append(request)
            # The row of a request that came in with this one was not known before.
            at = self.requests.index(source) if isinstance(source, Request) else source
            request.shift = self.requests[at].shift
            self._cache.copy_row(at, slice(row, row + 1), request.cached)
        self._place(first)

    def _reserve(self, columns: int) -> None:
        self._cache.reserve(columns, self._limit)
        if self._mask.shape[-1] != self._cache.columns:
            self._mask = torch.empty(self.rows, self._cache.columns, dtype=self.dtype, device=self.device)
            self._place(0)

    def _place(self, first: int) -> None:
        """Brings what the passes need of the rows from `first` on up to date."""
        requests = self.requests[first:]
        if requests:
            rows = slice(first, first + len(requests))
            self._last[rows] = torch.tensor([request.last for request in requests], device=self.device)
            self._length[rows] = torch.tensor([request.cached for request in requests], device=self.device)
            self._shift[rows] = torch.tensor([request.shift for request in requests], device=self.device)
            columns = torch.arange(self._mask.shape[1], device=self.device)
            # Not −∞: a row that sees nothing would become NaN in the softmax.
            self._mask[rows] = torch.where(columns < self._length[rows, None], 0.0, torch.finfo(self.dtype).min).to(self.dtype)
        self._cuts = None

    def _read(self, first: int, requests: Sequence[Request]) -> None:
        """Reads all tokens but the last of requests in consecutive rows."""
        ids = [[*request.prompt, *request.tokens][:-1] for request in requests]
        if self._inputs is None or all(request.shown is None for request in requests):
            self._read_rows(first, ids)
        else:
            self._read_seeing(first, ids, requests, self._inputs)

    def _read_seeing(self, first: int, ids: list[list[int]], requests: Sequence[Request], inputs: Inputs) -> None:
        """The same of rows of which some show pictures; notes where the positions of what follows begin."""
        arguments = inputs(seen_context(ids, [request.shown for request in requests], self.device))
        self._cache.target.read(first)
        self._network.base_model(**arguments, past_key_values=self._cache, use_cache=True)
        highest = arguments["position_ids"].reshape(-1, len(ids), max(map(len, ids)))[-_AXES:].amax(0)
        for row, request in enumerate(requests):
            length = len(ids[row])
            request.shift = int(highest[row, :length].max()) + 1 - length if length else 0

    def _read_rows(self, first: int, ids: list[list[int]]) -> None:
        width = max(map(len, ids), default=0)
        if width == 0:
            return
        # Padding is on the right, where causal attention does not look.
        padded = torch.tensor([row + [0] * (width - len(row)) for row in ids], device=self.device)
        positions = torch.arange(width, device=self.device).expand_as(padded)
        self._cache.target.read(first)
        # Without the head, as nobody needs the logits of a prompt.
        self._network.base_model(input_ids=padded, position_ids=positions, past_key_values=self._cache, use_cache=True)

    def _portions(self) -> Iterator[tuple[int, list[Request]]]:
        """Rows that can be read in one pass."""
        first = 0
        while first < len(self.requests):
            width, last = 0, first
            for last in range(first, len(self.requests)):
                width = max(width, self.requests[last].cached)
                if last > first and width * (last - first + 1) > self._max_batch_tokens:
                    break
            else:
                last = len(self.requests)
            yield first, self.requests[first:last]
            first = last

    @torch.inference_mode()
    def write(self, waiting: Sequence[Request], version: int) -> tuple[int, list[tuple[Request, Finish]]]:
        """Takes requests in, and writes one token for each that is there.

        Returns:
            How many were taken in, and those that are finished, with the reason; they have left.

        Raises:
            NonFiniteError: the network's output is not a number.
        """
        if self._stale:
            self._cache.release()
            self._reserve(max((request.cached for request in self.requests), default=0) + 1)
            for first, requests in self._portions():
                self._read(first, requests)
            self._stale = False
        taken = self.admit(waiting)
        longest = max(request.cached for request in self.requests) + 1
        self._reserve(longest)
        tokens, logprobs = self._draw(self._forward(len(self.requests), longest))
        # It grows with its columns only.
        if self._cache.columns > self._widest:
            self._widest = self._cache.columns
            self._largest = max(self._largest, self._cache.size + self._mask.nbytes)
        if not all(map(math.isfinite, logprobs)):
            raise NonFiniteError("generate", f"the log-probability of a token is not finite at version {version}")
        finished: list[tuple[Request, Finish]] = []
        for request, token, logprob in zip(self.requests, tokens, logprobs, strict=True):
            finish = request.add(token, logprob, version)
            if finish is not None:
                finished.append((request, finish))
        for request, _ in finished:
            self.remove(request)
        return taken, finished

    def _forward(self, n: int, longest: int) -> Tensor:
        """`[n, V]`, the logits of the next token of the first rows, of which the longest has so many with the last one."""
        length = self._length[:n]
        places = self._row[:n] * self._cache.columns + length
        # From this pass on, a row sees the column that the pass writes.
        self._mask.view(-1).index_fill_(0, places, 0.0)
        seen = min(-(-longest // _BLOCK) * _BLOCK, self._cache.columns)
        self._cache.target.write(places, seen)
        return self._network(
            input_ids=self._last[:n, None],
            position_ids=(length + self._shift[:n])[:, None],
            attention_mask=self._mask[:n, None, None, :seen],
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]

    def _draw(self, logits: Tensor) -> tuple[list[int], list[float]]:
        n = len(self.requests)
        if self._cuts is None:
            self._cuts = cuts([request.sampling for request in self.requests], logits.shape[-1], self.device)
        uniform = [request.uniforms[len(request.tokens)] for request in self.requests]
        tokens, logprobs = draw(logits, self._cuts, torch.tensor(uniform, dtype=torch.float64, device=self.device))
        self._last[:n] = tokens
        self._length[:n] += 1
        return cast("list[int]", tokens.tolist()), cast("list[float]", logprobs.tolist())  # pyright: ignore[reportUnknownMemberType]

    @torch.inference_mode()
    def remove(self, request: Request) -> None:
        """Frees the row of a request; the last row moves there."""
        row, last = self.requests.index(request), len(self.requests) - 1
        moved = self.requests.pop()
        if row != last:
            self.requests[row] = moved
            self._cache.copy_row(last, slice(row, row + 1), moved.cached)
            for state in (self._last, self._length, self._shift, self._mask):
                state[row] = state[last]
        self._cuts = None
        if not self.requests:
            self.clear()

    def probe(self, tokens: list[int]) -> Tensor:
        """`[V]`, the logits after some tokens, of which all but the last are read first; nothing may be in flight."""
        self._reserve(len(tokens))
        self._read_rows(0, [tokens[:-1]])
        self._last[0], self._length[0], self._shift[0] = tokens[-1], len(tokens) - 1, 0
        self._mask[0] = torch.finfo(self.dtype).min
        self._mask[0, : len(tokens) - 1] = 0.0
        logits = self._forward(1, len(tokens))[0]
        self.clear()
        return logits

    def close(self) -> None:
        """Drops all requests, and lets go of the network."""
        self.clear()
        self._network = self._inputs = None

    def clear(self) -> None:
        """Drops all requests, and gives the cache's memory back."""
        self.requests.clear()
        self._cache.release()
        self._mask = self._mask.new_empty(0)
        self._cuts, self._stale = None, False

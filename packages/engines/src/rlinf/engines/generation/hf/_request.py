"""One request for text, while it is in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import ShownPrompt
from rlinf.engines.generation._response import Finish as Finish
from rlinf.engines.generation._response import Response
from rlinf.engines.generation._sampling import uniforms


@dataclass(slots=True, eq=False, kw_only=True)
class Request(Response):
    """A prompt and what was written after it."""

    uniforms: list[float] = field(init=False)
    """One for each position of the response."""
    prefix: bytes = field(init=False)
    """All tokens of the prompt but the last, and its pictures: what completions of the same prompt share in the cache."""
    shown: ShownPrompt | None = None
    """What the prompt shows; None for text."""
    shift: int = 0
    """By how much the positions of what follows the prompt differ from its columns; known once the prompt was read."""

    def __post_init__(self) -> None:
        self.uniforms = uniforms(self.seed, self.sampling.max_new_tokens)
        self.prefix = np.asarray(self.prompt[:-1], dtype=np.int64).tobytes()

    @property
    def cached(self) -> int:
        """Columns of its row: every token but the last one, which the next pass takes."""
        return len(self.prompt) + len(self.tokens) - 1

    @property
    def last(self) -> int:
        """The token that the next pass takes."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]


def new_request(
    prompt: Sequence[int] | ShownPrompt,
    sampling: SamplingConfig,
    *,
    seed: int,
    request_id: str | None,
    partial: Completion[Any] | None,
) -> Request:
    """A request of the running event loop."""
    tokens = prompt.tokens if isinstance(prompt, ShownPrompt) else prompt
    request = Request.asked(tokens, sampling, seed=seed, request_id=request_id, partial=partial)
    if isinstance(prompt, ShownPrompt) and len(prompt.at):
        request.shown = prompt
        # Two pictures of one size stand at the same tokens.
        request.prefix += b"".join(np.ascontiguousarray(prompt.shown[name]).tobytes() for name in sorted(prompt.shown))
    return request

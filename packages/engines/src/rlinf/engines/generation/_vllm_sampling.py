"""Draws the tokens of vLLM; loaded by the processes of the engine, by name.

vLLM would return log-probabilities that `top_k` and `top_p` have cut, and draw from a stream that starts anew where a completion
is gone on with. So the token is chosen here, before vLLM samples: its logit becomes the tempered log-probability, all others −∞.
vLLM can then draw nothing else, and reports that logit ("processed_logits").
"""

from __future__ import annotations

import importlib
from typing import Any, Final, cast

import torch
from torch import Tensor

from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.generation._sampling import cuts, draw, uniforms
from rlinf.engines.generation._vllm import EXTRA

_interface: Any = importlib.import_module("vllm.v1.sample.logits_processor")


class Drawn:
    """How one request is drawn, and how far it is.

    Args:
        arguments: what `sampling_arguments` put there.
        written: tokens of this request, a list that vLLM keeps appending to.
    """

    def __init__(self, arguments: dict[str, Any], written: list[int]) -> None:
        self.sampling: Final = SamplingConfig(
            max_new_tokens=arguments["max_new_tokens"],
            temperature=arguments["temperature"],
            top_k=arguments["top_k"],
            top_p=arguments["top_p"],
        )
        self._uniforms: Final = uniforms(arguments["seed"], arguments["max_new_tokens"])
        self._offset: Final[int] = arguments["offset"]
        self._written: Final = written

    @property
    def uniform(self) -> float:
        """The number that decides the next token."""
        return self._uniforms[min(self._offset + len(self._written), len(self._uniforms) - 1)]


class SeededDraw(_interface.LogitsProcessor):
    """A logits processor of vLLM's first model runner; see the top of this file."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device: Final = device
        self._rows: Final[dict[int, Drawn]] = {}

    def is_argmax_invariant(self) -> bool:
        """False: it decides the token."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follows requests into, through and out of the batch."""
        if batch_update is None:
            return
        # vLLM asks for this order: removed, added, moved.
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, written in batch_update.added:
            arguments: dict[str, Any] | None = cast("dict[str, Any]", params.extra_args or {}).get(EXTRA)
            # It may take the row of a request that is not named among those removed.
            self._rows.pop(row, None)
            if arguments is not None:
                self._rows[row] = Drawn(arguments, written)
        for source, target, direction in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if other is not None and direction == _interface.MoveDirectionality.SWAP:
                self._rows[source] = other

    def apply(self, logits: Tensor) -> Tensor:
        """Chooses a token in every row of ours."""
        rows = [row for row in sorted(self._rows) if row < len(logits)]
        if not rows:
            return logits
        requests = [self._rows[row] for row in rows]
        chosen = torch.tensor(rows, device=logits.device)
        limits = cuts([request.sampling for request in requests], logits.shape[-1], logits.device)
        uniform = torch.tensor([request.uniform for request in requests], dtype=torch.float64, device=logits.device)
        tokens, logprobs = draw(logits[chosen], limits, uniform)
        logits[chosen] = -torch.inf
        logits[chosen, tokens] = logprobs
        return logits

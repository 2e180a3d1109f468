"""Which networks can be written with."""

from __future__ import annotations

from typing import Any, Final

import torch

from rlinf.core.errors import ConfigError
from rlinf.engines.generation._engine import context_length
from rlinf.engines.generation.hf._batch import Batch

_BARRED: Final = -1e3
"""Logits below are those of tokens that are never written, and say nothing of the size of the others."""


def context_of(network: Any, wanted: int | None) -> int:
    """The longest prompt and response together.

    Raises:
        ConfigError: the network was made for less, or attends to a window that is shorter.
    """
    own = network.config.get_text_config()
    limit = context_length(wanted, network.config)
    window: int | None = getattr(own, "sliding_window", None)
    kinds: list[str] = getattr(own, "layer_types", None) or ["sliding_attention"]
    if window is not None and window < limit and "sliding_attention" in kinds:
        found = f"layers attend to the last {window} tokens, which the cache does not know, found {limit}"
        raise ConfigError("max_model_len", found, f"Set it to at most {window}.")
    return limit


@torch.inference_mode()
def check_cache(network: Any, batch: Batch) -> None:
    """Compares a token after three that were cached with what the network makes of all four.

    Raises:
        ConfigError: they differ: the network remembers in a way of its own.
    """
    if batch.device.type == "meta":
        return
    tokens = [token % batch.vocabulary for token in (5, 6, 7, 8)]
    expected = network(input_ids=torch.tensor([tokens], device=batch.device), use_cache=False).logits[0, -1].float()
    try:
        found = batch.probe(tokens).float()
        size = float(expected[expected > _BARRED].abs().max())
        # `expected` is float32: where the weights are less precise, rounding alone makes larger differences.
        wrong = float((found - expected).abs().max()) > (1e-3 if expected.dtype == batch.dtype else 5e-2) * size
    except (TypeError, AttributeError, RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(
            "generator", f"'{network.config.model_type}' can't use the cache: {error}", "Use another engine."
        ) from error
    if wrong:
        raise ConfigError("generator", f"'{network.config.model_type}' remembers in a way of its own", "Use another engine.")

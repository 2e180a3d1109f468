"""Rows of prompts that show pictures, as the context that a policy makes its network's inputs of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.core.language.problems import ShownPrompt

Inputs = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the columns of a batch to the arguments of a network: `VisionLanguagePolicy.network_inputs` of `rlinf.core.capabilities`."""


def seen_context(ids: Sequence[Sequence[int]], prompts: Sequence[ShownPrompt | None], device: torch.device) -> dict[str, Tensor]:
    """`input_ids` and `segment_ids` `[n, W]`, filled up on the right, and leaves `[n, W, *]` of what is shown.

    Args:
        ids: n rows of tokens, the prompts first.
        prompts: what each row shows, at least one of them anything; None for text.
        device: where the network is.
    """
    shape = len(ids), max(map(len, ids))
    context = {name: torch.zeros(shape, dtype=torch.long) for name in ("input_ids", "segment_ids")}
    for row, tokens in enumerate(ids):
        context["input_ids"][row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        context["segment_ids"][row, : len(tokens)] = 1
    for row, prompt in enumerate(prompts):
        if prompt is None:
            continue
        for name, values in prompt.shown.items():
            tensor = torch.as_tensor(values)
            leaf = context.setdefault(name, torch.zeros((*shape, *tensor.shape[1:]), dtype=tensor.dtype))
            leaf[row, torch.as_tensor(prompt.at)] = tensor
    return {name: leaf.to(device) for name, leaf in context.items()}

"""The text that OpenVLA was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError

LLAMA_SPACE = 29871
"""The space of Llama's tokenizer, which stood at the end of every prompt in training, and which its tokenizer swallows."""


def prompt_text(task: str) -> str:
    """The question that asks for an action."""
    return f"In: What action should the robot take to {task.lower()}?\nOut:"


def encode_prompts(tasks: Sequence[str], tokenizer: Any, *, length: int, last: int | None) -> tuple[Tensor, Tensor]:
    """Prompts of one length: BOS first, then padding, then the text.

    Args:
        tasks: one instruction a sample.
        tokenizer: encodes text; has `bos_token_id`.
        length: N, tokens of every prompt.
        last: the token that every prompt ends with, `LLAMA_SPACE` for the published checkpoints; none if None.

    Returns:
        Token ids `[B, N]` int64 and the mask of what is not padding `[B, N]` bool.

    Raises:
        ConfigError: a prompt is longer.
    """
    # Rows of a batch often share their task.
    encoded = {task: _encode(task, tokenizer, last) for task in dict.fromkeys(tasks)}
    longest = max(encoded, key=lambda task: len(encoded[task]), default="")
    if encoded and len(encoded[longest]) >= length:
        found = f"the prompt of '{longest}' has {len(encoded[longest]) + 1} tokens, there is room for {length}"
        raise ConfigError("max_prompt_length", found, "Raise it.")
    tokens = torch.full((len(tasks), length), int(tokenizer.pad_token_id))
    mask = torch.zeros(len(tasks), length, dtype=torch.bool)
    tokens[:, 0], mask[:, 0] = int(tokenizer.bos_token_id), True
    for row, task in enumerate(tasks):
        text = encoded[task]
        tokens[row, length - len(text) :] = torch.tensor(text)
        mask[row, length - len(text) :] = True
    return tokens, mask


def _encode(task: str, tokenizer: Any, last: int | None) -> list[int]:
    """The ids of one prompt without BOS."""
    ids: list[int] = tokenizer(prompt_text(task), add_special_tokens=False)["input_ids"]
    return ids if last is None or ids[-1:] == [last] else [*ids, last]

"""The text that OpenVLA was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.models.observations import prompts

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
    prompts.expect_room(_lengths(encoded), length, "max_prompt_length")
    tokens = torch.full((len(tasks), length), int(tokenizer.pad_token_id))
    mask = torch.zeros(len(tasks), length, dtype=torch.bool)
    tokens[:, 0], mask[:, 0] = int(tokenizer.bos_token_id), True
    for row, task in enumerate(tasks):
        text = encoded[task]
        tokens[row, length - len(text) :] = torch.tensor(text)
        mask[row, length - len(text) :] = True
    return tokens, mask


def expect_room(tasks: Sequence[str], *, model_path: str | None, length: int, place: str) -> None:
    """Refuses tasks whose prompts are longer than `max_prompt_length`, by the tokenizer alone.

    Args:
        tasks: the instructions.
        model_path: the folder of the model; None for a preset.
        length: `max_prompt_length`.
        place: of the model, for the message.

    Raises:
        ConfigError: a prompt is longer.
    """
    from rlinf.models._tokenizers import read_tokenizer, tiny_tokenizer

    if not tasks:
        return
    tokenizer = tiny_tokenizer() if model_path is None else read_tokenizer(model_path)
    last = None if model_path is None else last_prompt_token(tokenizer)
    encoded = {task: _encode(task, tokenizer, last) for task in dict.fromkeys(tasks)}
    prompts.expect_room(_lengths(encoded), length, f"{place}.max_prompt_length")


def last_prompt_token(tokenizer: Any) -> int | None:
    """The token that every prompt ends with, if the tokenizer is Llama's: to another one the id means something else."""
    llama = len(tokenizer) > LLAMA_SPACE and tokenizer.convert_ids_to_tokens(LLAMA_SPACE) == "▁"
    return LLAMA_SPACE if llama else None


def _lengths(encoded: Mapping[str, Sequence[int]]) -> dict[str, int]:
    # BOS stands before the text.
    return {task: len(ids) + 1 for task, ids in encoded.items()}


def _encode(task: str, tokenizer: Any, last: int | None) -> list[int]:
    """The ids of one prompt without BOS."""
    ids: list[int] = tokenizer(prompt_text(task), add_special_tokens=False)["input_ids"]
    return ids if last is None or ids[-1:] == [last] else [*ids, last]

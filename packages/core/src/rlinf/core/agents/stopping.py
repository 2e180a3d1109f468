"""Texts that end a turn where a tokenizer splits them: what is written ends with the token that completes one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from rlinf.core.capabilities import HasProgress
from rlinf.core.data import Completion
from rlinf.core.language.generation import Generator
from rlinf.core.language.problems import Tokenizer

LOOK_S: Final = 0.02
"""How often a completion that is being written is looked at."""


def cut_at(completion: Completion[Any], tokenizer: Tokenizer, stop: Sequence[str]) -> Completion[Any]:
    """A completion without the tokens behind the first text that stops it.

    A token that goes on behind such a text stays whole: what was drawn is what is trained on.

    Args:
        completion: NumPy.
        tokenizer: that of the model.
        stop: the texts.
    """
    tokens = [int(token) for token in completion.tokens]
    if not stop or not _has(tokenizer, tokens, stop):
        return completion
    # The shortest beginning with such a text in it; texts of beginnings only grow.
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _has(tokenizer, tokens[:middle], stop) else (middle + 1, high)
    cut = slice(0, low)
    arrays = (completion.tokens[cut], completion.logprob[cut], completion.version[cut])
    return Completion(tokens=arrays[0], logprob=arrays[1], version=arrays[2], finish="stop")


async def written_until(
    written: Awaitable[Completion[Any]], generator: Generator, request_id: str, tokenizer: Tokenizer, stop: Sequence[str]
) -> Completion[Any]:
    """What is written up to the first text that stops it; nothing more is written than is noticed late.

    Args:
        written: the completion under way, NumPy.
        generator: writes it. One that doesn't show what it has goes on to its own end, and what is too much is cut off.
        request_id: that of the completion.
        tokenizer: that of the model.
        stop: texts; () for none.
    """
    if not stop or not isinstance(generator, HasProgress):
        return cut_at(await written, tokenizer, stop)
    task, seen = asyncio.ensure_future(written), 0
    # A token stands for a byte at least; some more, for the first one may be in the midst of a character.
    overlap = max(len(text.encode()) for text in stop) + 4
    try:
        while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
            so_far = generator.progress(request_id)
            if _has(tokenizer, so_far[max(0, seen - overlap) :], stop):
                # The request then returns all that it has, and `cut_at` finds where it should have ended.
                generator.abort([request_id])
                break
            seen = len(so_far)
        return cut_at(await task, tokenizer, stop)
    finally:
        # Of no effect where it is done; where this wait was cancelled, nothing more is to be written.
        task.cancel()


def _has(tokenizer: Tokenizer, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    if not tokens:
        return False
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return any(each in text for each in stop)

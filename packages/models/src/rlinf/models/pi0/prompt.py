"""What π0 and π0.5 are told, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.models.flow.conditioning import BAD, GOOD, UNCONDITIONAL

BINS = 256
_SAID = {GOOD: ", Advantage: positive", BAD: ", Advantage: negative"}


def state_prompt(task: str, states: NDArray[np.float32]) -> str:
    """The prompt of π0.5: the task, and the state in bins.

    Args:
        task: the instruction.
        states: `[D]`, normalised to ±1. What lies below −1 gets the bin −1, as in the data that the model was trained on.
    """
    return _told(task, np.digitize(states, np.linspace(-1.0, 1.0, BINS + 1)[:-1]) - 1)


def task_prompt(task: str) -> str:
    """The prompt of π0: the task and a line break, after which the answer was in PaliGemma's training."""
    return f"{_clean(task)}\n"


def told_tasks(tasks: Sequence[str], labels: Sequence[int]) -> list[str]:
    """Instructions, each with whether what is done is good: "Advantage: positive" or "Advantage: negative" behind it.

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), arXiv:2511.14759.

    Args:
        tasks: the instructions.
        labels: of each one, `GOOD`, `BAD`, or `UNCONDITIONAL` for the instruction alone (`rlinf.models.flow.conditioning`).
    """
    return [task if label == UNCONDITIONAL else _clean(task) + _SAID[label] for task, label in zip(tasks, labels, strict=True)]


def encode(prompts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of prompts, behind BOS."""
    ids = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    return [[tokenizer.bos_token_id, *row] for row in ids]


def longest_prompts(tasks: Sequence[str], tokenizer: Any, states: int | None) -> dict[str, int]:
    """Tokens of each task's prompt at most, whatever the state is.

    Args:
        tasks: the instructions.
        tokenizer: encodes text; has `bos_token_id`.
        states: of how many numbers π0.5 is told; None for π0.
    """
    distinct = list(dict.fromkeys(tasks))
    if states is None:
        prompts = [task_prompt(task) for task in distinct]
    else:
        bins = range(-1, BINS)
        lengths = map(len, encode([_told("", [number] * states) for number in bins], tokenizer))
        _, longest = max(zip(lengths, bins, strict=True))
        prompts = [_told(task, [longest] * states) for task in distinct]
    return {task: len(row) for task, row in zip(distinct, encode(prompts, tokenizer), strict=True)}


def texts(tasks: Any) -> list[str]:
    """Instructions as plain strings, of a list or an array of text."""
    return [str(task) for task in np.asarray(tasks).ravel()]


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids `[B, L]`, padded with 0 on the right, and which of them are tokens."""
    valid = np.arange(length) < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(valid.shape, np.int64)
    ids[valid] = [token for row in rows for token in row]
    return ids, valid


def _told(task: str, bins: Iterable[int]) -> str:
    return f"Task: {_clean(task)}, State: {' '.join(map(str, bins))};\nAction: "


def _clean(task: str) -> str:
    # As openpi cleans instructions before it tokenizes them.
    return task.strip().replace("_", " ").replace("\n", " ")

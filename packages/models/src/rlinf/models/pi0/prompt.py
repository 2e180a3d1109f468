"""What π0 and π0.5 are told, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 256


def state_prompt(task: str, states: NDArray[np.float32]) -> str:
    """The prompt of π0.5: the task, and the state in bins.

    Args:
        task: the instruction.
        states: `[D]`, normalised to ±1. What lies below −1 gets the bin −1, as in the data that the model was trained on.
    """
    digits = np.digitize(states, np.linspace(-1.0, 1.0, BINS + 1)[:-1]) - 1
    return f"Task: {_clean(task)}, State: {' '.join(str(d) for d in digits)};\nAction: "


def task_prompt(task: str) -> str:
    """The prompt of π0: the task and a line break, after which the answer was in PaliGemma's training."""
    return f"{_clean(task)}\n"


def texts(tasks: Any) -> list[str]:
    """Instructions as plain strings, of a list or an array of text."""
    return [str(task) for task in np.asarray(tasks).ravel()]


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids `[B, L]`, padded with 0 on the right, and which of them are tokens."""
    valid = np.arange(length) < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(valid.shape, np.int64)
    ids[valid] = [token for row in rows for token in row]
    return ids, valid


def _clean(task: str) -> str:
    # As openpi cleans instructions before it tokenizes them.
    return task.strip().replace("_", " ").replace("\n", " ")

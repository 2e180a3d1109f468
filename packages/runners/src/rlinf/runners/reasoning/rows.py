"""From responses to the rows of a `Trajectory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Completion
from rlinf.core.errors import ShapeError
from rlinf.core.problems import ShownPrompt
from rlinf.core.trajectory import Trajectory


def group_rows(
    prompt: ShownPrompt,
    completions: Sequence[Completion[Any]],
    rewards: Sequence[float],
    *,
    group: int,
    task: int = 0,
    pad_id: int,
) -> Trajectory[Any]:
    """The responses to one prompt, one row each, padded on the right.

    Column t has seen `input_ids[:, : t + 1]` and decides the token that comes next: a prompt of P tokens and a response of R
    take P + R − 1 columns, of which the last R are decisions. The reward comes with the last one. A response that is as long as
    allowed is `truncated`; nobody will know what it would have come to, so that a critic bootstraps it with 0.

    Args:
        prompt: P ≥ 1 tokens. What they show stands at their columns in leaves `[B, T, *]` of the context, 0 elsewhere.
        completions: NumPy.
        rewards: one for each.
        group: the group's number.
        task: which task it is of.
        pad_id: fills rows up.

    Raises:
        ShapeError: the prompt is empty, or a completion has no reward of its own.
    """
    if not prompt.tokens or len(completions) != len(rewards):
        found = f"a prompt of {len(prompt.tokens)} tokens, {len(completions)} completions and {len(rewards)} rewards"
        raise ShapeError("group_rows", f"expected a prompt, and a reward for each completion, found {found}")
    rows, before = len(completions), len(prompt.tokens) - 1
    # A prompt of one token with empty responses would have no column.
    horizon = max(1, before + max(len(c) for c in completions))
    ids, action = (np.full((rows, horizon), pad_id, np.int64) for _ in range(2))
    segment, version = np.zeros((rows, horizon), np.int64), np.zeros((rows, horizon), np.int64)
    logprob, reward = np.zeros((rows, horizon), np.float32), np.zeros((rows, horizon), np.float32)
    mask, terminated, truncated = (np.zeros((rows, horizon), bool) for _ in range(3))
    for row, (completion, score) in enumerate(zip(completions, rewards, strict=True)):
        tokens = np.concatenate([np.asarray(prompt.tokens, np.int64), np.asarray(completion.tokens, np.int64)])
        end = len(tokens) - 1
        ids[row, :end], action[row, :end], segment[row, :end] = tokens[:-1], tokens[1:], 1
        written = slice(before, end)
        mask[row, written] = True
        logprob[row, written], version[row, written] = completion.logprob, completion.version
        # An empty response has no decision that its reward could come with.
        if len(completion):
            reward[row, end - 1] = score
            (truncated if completion.finish == "length" else terminated)[row, end - 1] = True
    return Trajectory(
        context={"input_ids": ids, "segment_ids": segment, **_leaves(prompt, rows, horizon)},
        action=action[..., None, None],
        logprob=logprob,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        version=version,
        group=np.full(rows, group, np.int64),
        task=np.full(rows, task, np.int64),
    )


def _leaves(prompt: ShownPrompt, rows: int, horizon: int) -> dict[str, NDArray[Any]]:
    """What the prompt shows, `[rows, horizon, *]` each."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in prompt.shown.items():
        found[name] = np.zeros((rows, horizon, *values.shape[1:]), values.dtype)
        found[name][:, prompt.at] = values
    return found

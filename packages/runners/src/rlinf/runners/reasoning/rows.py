"""From responses to the rows of a `Trajectory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data import Completion, Trajectory
from rlinf.core.errors import ShapeError
from rlinf.core.language.problems import ShownPrompt


def group_rows(
    prompt: ShownPrompt,
    completions: Sequence[Completion[Any]],
    rewards: Sequence[float],
    *,
    group: int,
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
        pad_id: fills rows up.

    Raises:
        ShapeError: the prompt is empty, or a completion has no reward of its own.
    """
    if not prompt.tokens or len(completions) != len(rewards):
        found = f"a prompt of {len(prompt.tokens)} tokens, {len(completions)} completions and {len(rewards)} rewards"
        raise ShapeError("group_rows", f"expected a prompt, and a reward for each completion, found {found}")
    rows = [_row(prompt, completion, score) for completion, score in zip(completions, rewards, strict=True)]
    return token_rows(rows, group=group, pad_id=pad_id, prompt=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A sequence of N tokens, some of which a policy wrote; NumPy."""

    tokens: NDArray[np.int64]
    """`[N]`."""
    written: NDArray[np.bool_]
    """`[N]`, which of them the policy wrote and is trained on; never the first."""
    logprob: NDArray[np.float32]
    """`[N]`, where it wrote them; anything elsewhere."""
    version: NDArray[np.int64]
    """`[N]`, the weights that wrote them; anything elsewhere."""
    reward: NDArray[np.float32]
    """`[N]`, what came with each token; 0 where none was written."""
    cut: bool = False
    """Whether a limit of length ended it."""


def token_rows(
    rows: Sequence[TokenRow],
    *,
    group: int,
    pad_id: int,
    prompt: ShownPrompt | None = None,
    episode: NDArray[np.int64] | None = None,
) -> Trajectory[Any]:
    """Sequences of tokens as a trajectory, padded on the right.

    Column t has seen `input_ids[:, : t + 1]` and decides the token that comes next, so that N tokens take N − 1 columns.

    Args:
        rows: at least one; what was not written is masked.
        group: the group's number.
        pad_id: fills rows up.
        prompt: with which all rows begin, and what it shows; None where nothing is shown.
        episode: `[B]`, the episode of each row; None where each is one of its own.
    """
    # A prompt of one token with empty responses would have no column.
    horizon = max(1, *(len(row.tokens) - 1 for row in rows))
    shape = (len(rows), horizon)
    ids, action = (np.full(shape, pad_id, np.int64) for _ in range(2))
    segment, version = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    logprob, reward = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    mask, terminated, truncated = (np.zeros(shape, bool) for _ in range(3))
    for number, row in enumerate(rows):
        end, written = len(row.tokens) - 1, row.written[1:]
        ids[number, :end], action[number, :end], segment[number, :end] = row.tokens[:-1], row.tokens[1:], 1
        mask[number, :end] = written
        logprob[number, :end] = np.where(written, row.logprob[1:], 0.0)
        version[number, :end] = np.where(written, row.version[1:], 0)
        reward[number, :end] = row.reward[1:]
        # Without a decision there is nothing that its reward could come with, and no end.
        if written.any():
            (truncated if row.cut else terminated)[number, int(np.flatnonzero(written)[-1])] = True
    return Trajectory(
        context={"input_ids": ids, "segment_ids": segment, **({} if prompt is None else _leaves(prompt, len(rows), horizon))},
        action=action[..., None, None],
        logprob=logprob,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        version=version,
        group=np.full(len(rows), group, np.int64),
        task=np.zeros(len(rows), np.int64),
        episode=episode,
    )


def _row(prompt: ShownPrompt, completion: Completion[Any], score: float) -> TokenRow:
    """A prompt and a response, whose reward comes with its last token."""
    before, count = len(prompt.tokens), len(completion)
    reward = np.zeros(before + count, np.float32)
    if count:
        reward[-1] = score
    return TokenRow(
        tokens=np.concatenate([np.asarray(prompt.tokens, np.int64), np.asarray(completion.tokens, np.int64)]),
        written=np.arange(before + count) >= before,
        logprob=np.concatenate([np.zeros(before, np.float32), np.asarray(completion.logprob, np.float32)]),
        version=np.concatenate([np.zeros(before, np.int64), np.asarray(completion.version, np.int64)]),
        reward=reward,
        cut=completion.finish == "length",
    )


def _leaves(prompt: ShownPrompt, rows: int, horizon: int) -> dict[str, NDArray[Any]]:
    """What the prompt shows, `[rows, horizon, *]` each."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in prompt.shown.items():
        found[name] = np.zeros((rows, horizon, *values.shape[1:]), values.dtype)
        found[name][:, prompt.at] = values
    return found

"""Text as decisions: one column for each token that is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from rlinf.core.errors import ShapeError

INPUT_IDS: Final = "input_ids"
SEGMENT_IDS: Final = "segment_ids"
SEEN_UNTIL: Final = "seen_until"
Piece = tuple[Sequence[int], Sequence[int]]
"""A prompt, and what follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The part of a `Trajectory` that says which tokens were written after which.

    Column t has seen `input_ids[:, : t + 1]` of its own sequence and decides the token that comes next.
    """

    context: dict[str, Tensor]
    """`input_ids` `[B, T]`, and `segment_ids` `[B, T]`: 0 for padding, otherwise the number of the sequence, from 1."""
    action: Tensor
    """`[B, T, 1, 1]`, the next token."""
    mask: Tensor
    """`[B, T]` bool, whether the next token belongs to a response."""


def token_batch(rows: Sequence[Sequence[Piece]], *, pad_id: int = 0, side: Literal["right", "left"] = "right") -> TokenBatch:
    """Lays sequences out in rows; several in one row are packed, and don't see each other.

    Args:
        rows: for each row its sequences, each a prompt of at least one token and its response.
        pad_id: fills rows up.
        side: where.

    Raises:
        ShapeError: a prompt is empty, or there is nothing.
    """
    if not rows or any(not prompt for row in rows for prompt, _ in row):
        raise ShapeError("token_batch(rows)", "expected rows of prompts of at least one token, found an empty one")
    columns = [[list(column) for column in zip(*_columns(row), strict=True)] for row in rows]
    horizon = max((len(row[0]) for row in columns if row), default=0)
    if horizon == 0:
        raise ShapeError("token_batch(rows)", "expected something to predict, found prompts of one token without responses")
    fields = [
        [_fill(row[i] if row else [], horizon, empty, side) for row in columns] for i, empty in enumerate((pad_id, pad_id, 0, 0))
    ]
    ids, action, mask, segment = (torch.tensor(field, dtype=torch.long) for field in fields)
    return TokenBatch(context={INPUT_IDS: ids, SEGMENT_IDS: segment}, action=action[..., None, None], mask=mask.bool())


def text_context(
    sequences: Sequence[Sequence[int]], *, pad_id: int = 0, side: Literal["right", "left"] = "right"
) -> dict[str, Tensor]:
    """`input_ids` and `segment_ids` `[B, T]` of whole sequences, one in a row: what a reward model reads.

    Raises:
        ShapeError: a sequence is empty, or there is none.
    """
    # A column exists only with a token after it; what that is, nobody looks at here.
    return token_batch([[(sequence, [pad_id])] for sequence in sequences], pad_id=pad_id, side=side).context


def last_columns(segment_ids: Tensor, *, may_be_blank: bool = False) -> Tensor:
    """`[B]`, where the one sequence of each row ends.

    Args:
        segment_ids: `[B, T]`.
        may_be_blank: whether a row may only pad; its column is 0.

    Raises:
        ShapeError: a row holds several sequences, or none.
    """
    real = segment_ids > 0
    if bool((segment_ids > 1).any()) or not (may_be_blank or bool(real.any(1).all())):
        raise ShapeError("context.segment_ids", "expected one sequence in each row, found several, or none", "Don't pack them.")
    columns = torch.arange(segment_ids.shape[1], device=segment_ids.device)
    return torch.where(real, columns, 0).amax(1)


def restarting_positions(segment_ids: Tensor) -> Tensor:
    """`[B, T]`, the place of each token in its own sequence; the padding counts as sequences of its own.

    transformers builds attention that is causal within a sequence and blocked between sequences from nothing but these.
    """
    columns = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    # A change of number begins a sequence, also one from padding or to it.
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return columns - torch.where(begins, columns, 0).cummax(1).values


def seen_by(seen_until: Tensor) -> Tensor:
    """`[B, T, T]` bool, which columns (the last axis) each column sees: j ≤ i < seen_until[j].

    Args:
        seen_until: `[B, T]` int, see `rlinf.core.capabilities.SeesTrees`.
    """
    columns = torch.arange(seen_until.shape[1], device=seen_until.device)
    return (columns[:, None] >= columns) & (columns[:, None] < seen_until[:, None, :])


def _columns(row: Sequence[Piece]) -> Iterator[tuple[int, int, int, int]]:
    """What was seen last, what comes next, whether that is a response, and the number of the sequence."""
    for number, (prompt, response) in enumerate(row, start=1):
        tokens = [*prompt, *response]
        for t in range(len(tokens) - 1):
            yield tokens[t], tokens[t + 1], int(t + 1 >= len(prompt)), number


def _fill(values: list[int], horizon: int, empty: int, side: Literal["right", "left"]) -> list[int]:
    missing = [empty] * (horizon - len(values))
    return values + missing if side == "right" else missing + values

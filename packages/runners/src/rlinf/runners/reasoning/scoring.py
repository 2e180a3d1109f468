"""Re-scoring trajectories in pieces that fit, without columns that are padding in all of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf.core.data import Rescored
from rlinf.core.trajectory import Batch, Credit, Trajectory
from rlinf.core.tree import Tree, tree_map

Rows = NDArray[np.intp]


def widths(trajectory: Trajectory[Tensor]) -> Rows:
    """`[B]`, how many columns of each row are no padding."""
    context: Any = trajectory.context
    return np.asarray((context["segment_ids"] > 0).sum(1).cpu(), np.intp)


def pieces(rows: Rows, width: Rows, *, size: int | None, tokens: int | None) -> list[Rows]:
    """Rows in pieces for one forward pass each, rows of like width together.

    Args:
        rows: which rows, at least one.
        width: `[B]`, that of every row of the batch.
        size: the most rows of a piece; None for any number.
        tokens: the most columns of a piece, padding too; a row that is wider goes alone. None for any number.
    """
    ordered = rows[np.argsort(width[rows], kind="stable")]
    found: list[Rows] = []
    begin = 0
    for end in range(1, len(ordered) + 1):
        last = end == len(ordered)
        count = end + 1 - begin
        full = not last and (
            (size is not None and count > size) or (tokens is not None and count * int(width[ordered[end]]) > tokens)
        )
        if last or full:
            found.append(ordered[begin:end])
            begin = end
    return found


def trimmed(batch: Batch[Tensor], rows: Rows, width: Rows) -> Batch[Tensor]:
    """Some rows of a batch, with as many columns as the widest of them needs."""
    horizon = max(1, int(width[rows].max()))
    index = torch.from_numpy(rows)  # pyright: ignore[reportUnknownMemberType]
    part = batch.rows(index)
    t, credit = part.trajectory, part.credit

    def cut(leaf: Tensor) -> Tensor:
        return leaf[:, :horizon]

    def maybe(leaf: Tensor | None) -> Tensor | None:
        return None if leaf is None else cut(leaf)

    context: Tree[Tensor] = tree_map(cut, t.context)
    trajectory = Trajectory(
        context=context,
        action=cut(t.action),
        logprob=cut(t.logprob),
        reward=cut(t.reward),
        terminated=cut(t.terminated),
        truncated=cut(t.truncated),
        mask=cut(t.mask),
        version=cut(t.version),
        group=t.group,
        task=t.task,
        value=None if t.value is None else t.value[:, : horizon + 1],
        reference=maybe(t.reference),
        proximal=maybe(t.proximal),
        episode=t.episode,
    )
    return Batch(trajectory=trajectory, credit=Credit(advantage=cut(credit.advantage), target=maybe(credit.target)))


def without_credit(trajectory: Trajectory[Tensor]) -> Batch[Tensor]:
    """A batch of decisions that are only to be scored."""
    return Batch(trajectory=trajectory, credit=Credit(advantage=torch.zeros_like(trajectory.reward)))


def cut_off(trajectory: Trajectory[Tensor]) -> Tensor:
    """`[B]` bool, the rows that a limit of length cut off."""
    return (trajectory.truncated & trajectory.mask).any(1)


def without_cut_off(trajectory: Trajectory[Tensor], credit: Credit[Tensor]) -> tuple[Trajectory[Tensor], Credit[Tensor]]:
    """The same rows, of which those that a limit cut off are masked: they keep their place and lose their weight.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), §3.4, arXiv:2503.14476.
    """
    mask = trajectory.mask & ~cut_off(trajectory)[:, None]
    target = None if credit.target is None else torch.where(mask, credit.target, 0.0)
    return replace(trajectory, mask=mask), Credit(advantage=torch.where(mask, credit.advantage, 0.0), target=target)


def scattered(trajectory: Trajectory[Tensor], parts: Iterator[tuple[Rows, Rescored[Tensor]]]) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities and values `[B, T]` of a trajectory from those of its pieces, 0 elsewhere; no values without a critic."""
    logprob = torch.zeros_like(trajectory.logprob)
    value: Tensor | None = None
    for rows, evaluation in parts:
        index, horizon = torch.from_numpy(rows), evaluation.logprob.shape[1]  # pyright: ignore[reportUnknownMemberType]
        logprob[index, :horizon] = evaluation.logprob.to(logprob)
        if evaluation.value is not None:
            value = torch.zeros_like(trajectory.reward) if value is None else value
            value[index, :horizon] = evaluation.value.to(value)
    return logprob, value

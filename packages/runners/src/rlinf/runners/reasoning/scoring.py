"""Re-scoring trajectories in pieces that fit, without columns that are padding in all of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.capabilities import HasReference, LanguageModelPolicy
from rlinf.core.data import Batch, Credit, Rescored, Scores, Trajectory
from rlinf.core.protocols import Trainer
from rlinf.runners.lazy import torch
from rlinf.runners.training.agreement import evaluated, of_ranks, scores_of
from rlinf.runners.training.tensors import to_torch

if TYPE_CHECKING:
    from torch import Tensor


Rows = NDArray[np.intp]


def widths(trajectory: Trajectory[Tensor]) -> Rows:
    """`[B]`, how many columns of each row are no padding."""
    context: Any = trajectory.context
    return np.asarray((context["segment_ids"] > 0).sum(1).cpu(), np.intp)


def episode_members(trajectory: Trajectory[Any]) -> list[Rows]:
    """The rows of each episode, in the order in which episodes begin; where nothing tells them apart, each row is one."""
    if trajectory.episode is None:
        return list(np.arange(len(trajectory), dtype=np.intp)[:, None])
    found: dict[tuple[int, int], list[int]] = {}
    # Numbers of episodes may come again in another group.
    for row, name in enumerate(zip(trajectory.group.tolist(), trajectory.episode.tolist(), strict=True)):
        found.setdefault(name, []).append(row)
    return [np.asarray(rows, np.intp) for rows in found.values()]


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
        # Rows come in order of their widths: the next one would be the widest of the piece.
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
    index = torch.from_numpy(rows)  # pyright: ignore[reportUnknownMemberType]
    return batch.rows(index).columns(max(1, int(width[rows].max())))


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


def scattered(trajectory: Trajectory[Tensor], parts: Iterator[tuple[Rows, Rescored[Tensor]]]) -> Rescored[Tensor]:
    """Log-probabilities, values and Σ π² `[B, T]` of a trajectory from those of its pieces, 0 elsewhere; no entropies."""
    logprob = torch.zeros_like(trajectory.logprob)
    others: dict[str, Tensor] = {}
    for rows, evaluation in parts:
        index, horizon = torch.from_numpy(rows), evaluation.logprob.shape[1]  # pyright: ignore[reportUnknownMemberType]
        logprob[index, :horizon] = evaluation.logprob.to(logprob)
        for name in ("value", "sum_pi_squared"):
            piece: Tensor | None = getattr(evaluation, name)
            if piece is not None:
                whole = others.setdefault(name, torch.zeros_like(trajectory.reward))
                whole[index, :horizon] = piece.to(whole)
    return Rescored(logprob=logprob, value=others.get("value"), sum_pi_squared=others.get("sum_pi_squared"))


Found: TypeAlias = "Sequence[tuple[Rows, Rescored[Tensor]]]"
"""Pieces of a trajectory, and what a trainer says of them."""


class Rescorer:
    """Asks a trainer about trajectories, piece by piece.

    Args:
        trainer: that of this rank.
        rank: this rank.
        world_size: how many ranks ask together.
    """

    def __init__(self, trainer: Trainer, rank: int, world_size: int) -> None:
        self._trainer, self._rank, self._world_size = trainer, rank, world_size

    def scores(self, trajectory: Trajectory[Tensor], parts: Sequence[Rows]) -> Found:
        """What the current weights say of some pieces; every rank calls it."""
        return self._each(self._trainer.evaluate, trajectory, parts)

    def references(self, trajectory: Trajectory[Tensor], parts: Sequence[Rows]) -> Found:
        """What the trainer's reference policy says of some pieces; every rank calls it."""
        trainer = cast("HasReference", self._trainer)
        return self._each(lambda batch: Rescored(logprob=trainer.reference(batch)), trajectory, parts)

    def at_temperature(
        self, policy: LanguageModelPolicy, factor: float, trajectory: Trajectory[Tensor], parts: Sequence[Rows]
    ) -> Found:
        """The same as `scores`, at a multiple of the policy's temperature.

        Args:
            policy: the one that is trained; it is afterwards what it was.
            factor: by which its temperature is multiplied.
            trajectory: the responses.
            parts: their pieces.
        """
        temperature = policy.temperature
        policy.temperature = temperature * factor
        try:
            return self.scores(trajectory, parts)
        finally:
            policy.temperature = temperature

    def of_ranks(self, value: int) -> list[int]:
        """A number of each rank, whichever of them the trainer adds over; every rank calls it."""
        return of_ranks(self._trainer, value, rank=self._rank, world_size=self._world_size)

    def _each(self, ask: Callable[[Batch[Any]], Rescored[Tensor]], trajectory: Trajectory[Tensor], parts: Sequence[Rows]) -> Found:
        batch, width = Batch.of(trajectory), widths(trajectory)
        rounds = max(self.of_ranks(len(parts)))
        return list(zip(parts, evaluated(ask, parts, lambda rows: trimmed(batch, rows, width), rounds=rounds), strict=True))


def compared(
    trajectory: Trajectory[Tensor],
    found: Found,
    *,
    version: int,
    mask: Tensor | None = None,
    rescore: Callable[[float], Found] | None = None,
) -> Scores[Tensor]:
    """What a gate looks at: responses of which a trainer has said something.

    Args:
        trajectory: what the rollout said.
        found: what the trainer says of some of it, or of all.
        version: the trainer's.
        mask: `[B, T]`, what counts; None for the tokens of the very weights that the trainer has.
        rescore: the same as `found` at a temperature that is multiplied by a factor; None if nobody can.
    """
    covered = torch.zeros_like(trajectory.mask)
    for rows, evaluation in found:
        covered[to_torch(rows), : evaluation.logprob.shape[1]] = True
    counted = trajectory.mask & (trajectory.version == version) if mask is None else mask
    trainer = scattered(trajectory, iter(found)).logprob
    again = None if rescore is None else partial(_rescored, trajectory, rescore)
    return scores_of(trajectory, trainer, version=version, mask=covered & counted, rescore=again)


def _rescored(trajectory: Trajectory[Tensor], rescore: Callable[[float], Found], factor: float) -> Tensor:
    return scattered(trajectory, iter(rescore(factor))).logprob

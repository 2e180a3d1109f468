"""A trainer's scores of past responses: every rank evaluates equally often, as it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.capabilities import HasReference, LanguageModelPolicy
from rlinf.core.data import Rescored, Scores
from rlinf.core.protocols import Trainer
from rlinf.core.trajectory import Batch, Trajectory
from rlinf.runners.reasoning.scoring import Rows, scattered, trimmed, widths, without_credit
from rlinf.runners.training.agreement import evaluated, of_ranks, scores_of
from rlinf.runners.training.tensors import to_torch

Found = Sequence[tuple[Rows, Rescored[Tensor]]]
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
        batch, width = without_credit(trajectory), widths(trajectory)
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

    def again(factor: float) -> Tensor:
        return torch.empty(0) if rescore is None else scattered(trajectory, iter(rescore(factor)))[0]

    trainer, _ = scattered(trajectory, iter(found))
    return scores_of(trajectory, trainer, version=version, mask=covered & counted, rescore=None if rescore is None else again)

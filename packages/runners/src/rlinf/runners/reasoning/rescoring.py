"""A trainer's scores of past responses: every rank evaluates equally often, as it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.capabilities import Referring, Writing
from rlinf.core.data import Evaluation
from rlinf.core.protocols import Trainer
from rlinf.core.trajectory import Batch, Trajectory
from rlinf.runners.reasoning.scoring import Rows, padded_to, trimmed, widths, without_credit

Found = Sequence[tuple[Rows, Evaluation[Tensor]]]
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
        trainer = cast("Referring", self._trainer)
        return self._each(lambda batch: Evaluation(logprob=trainer.reference(batch)), trajectory, parts)

    def at_temperature(self, policy: Writing, factor: float, trajectory: Trajectory[Tensor], parts: Sequence[Rows]) -> Found:
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
        own = torch.zeros(self._world_size)
        own[self._rank] = value
        return [int(number) for number in self._trainer.all_reduce(own)]

    def _each(
        self, ask: Callable[[Batch[Any]], Evaluation[Tensor]], trajectory: Trajectory[Tensor], parts: Sequence[Rows]
    ) -> Found:
        batch, width = without_credit(trajectory), widths(trajectory)
        found: list[tuple[Rows, Evaluation[Tensor]]] = []
        for rows in padded_to(parts, max(self.of_ranks(len(parts)))):
            evaluation = ask(trimmed(batch, parts[0] if rows is None else rows, width))
            if rows is not None:
                found.append((rows, evaluation))
        return found

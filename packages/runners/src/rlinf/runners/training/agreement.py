"""Whether the trainer says of decisions what the rollout said of them: one gate for all kinds of runs, asked piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.core.capabilities import HasPrecision
from rlinf.core.data import Batch, Rescored, Scores, Trajectory
from rlinf.core.protocols import Trainer
from rlinf.runners.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

P = TypeVar("P")
PRECISIONS = ("bf16", "fp16", "fp32")
"""From the coarsest to the finest."""


def coarsest(*parts: object) -> str:
    """The coarsest precision in which something computes; float32 where nothing says.

    Args:
        parts: configurations of models, trainers and generators.
    """
    named = {part.precision for part in parts if isinstance(part, HasPrecision)}
    return next((precision for precision in PRECISIONS if precision in named), "fp32")


def of_ranks(trainer: Trainer, value: int, *, rank: int, world_size: int) -> list[int]:
    """A number of each rank, whichever of them the trainer adds over; every rank calls it."""
    # A trainer can only add over ranks, so each rank writes into a place of its own.
    own = torch.zeros(world_size)
    own[rank] = value
    return [int(number) for number in trainer.all_reduce(own)]


def evaluated(
    ask: Callable[[Batch[Any]], Rescored[Tensor]], pieces: Iterable[P], batch_of: Callable[[P], Batch[Any]], *, rounds: int
) -> list[Rescored[Tensor]]:
    """What a trainer says of pieces, one after the other.

    Ranks that share a model must ask equally often: a rank with fewer pieces than others asks of its first one again.

    Args:
        ask: the trainer.
        pieces: at least one.
        batch_of: makes the batch of a piece, so that only one is there at a time.
        rounds: how often every rank asks.
    """
    held = list(pieces)
    found = [ask(batch_of(piece)) for piece in held]
    for _ in range(len(held), rounds):
        ask(batch_of(held[0]))
    return found


def scores_of(
    trajectory: Trajectory[Tensor],
    trainer: Tensor,
    *,
    version: int,
    mask: Tensor | None = None,
    rescore: Callable[[float], Tensor] | None = None,
) -> Scores[Tensor]:
    """What a gate looks at.

    Args:
        trajectory: what the rollout said.
        trainer: what the trainer says of it, of the same shape as its log-probabilities.
        version: the trainer's.
        mask: `[B, T]`, what counts; None takes the trajectory's.
        rescore: what the trainer says at a temperature that is multiplied by a factor; None if nobody can.
    """
    rollout = trajectory.logprob
    return Scores(
        rollout=rollout,
        trainer=trainer.to(rollout.device),
        mask=_widened(trajectory.mask if mask is None else mask, rollout),
        version=_widened(trajectory.version, rollout),
        trainer_version=version,
        rescore=rescore,
    )


def decision_logprobs(
    ask: Callable[[Batch[Any]], Rescored[Tensor]],
    batch: Batch[Tensor],
    trainer: Trainer,
    *,
    size: int,
    rank: int,
    world_size: int,
) -> Tensor:
    """The log-probabilities of a batch, asked for in micro-batches; every rank calls it.

    Args:
        ask: who says them: the trainer, or its reference policy.
        batch: rows.
        trainer: that of this rank, which adds over ranks.
        size: rows in one forward pass.
        rank: this rank.
        world_size: how many ranks there are.

    Returns:
        On the CPU, in the shape of the batch's own.
    """
    pieces: Sequence[Batch[Tensor]] = list(batch.micro_batches(size))
    rounds = max(of_ranks(trainer, len(pieces), rank=rank, world_size=world_size))
    found = evaluated(ask, pieces, lambda piece: piece, rounds=rounds)
    return torch.cat([evaluation.logprob.cpu() for evaluation in found])


def _widened(column: Tensor, like: Tensor) -> Tensor:
    """`[B, T]` for every log-probability of a decision."""
    return column.reshape(*column.shape, *[1] * (like.ndim - column.ndim)).expand(like.shape)

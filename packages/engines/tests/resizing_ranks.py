"""One rank becomes two and one again, and steps as one rank that stays alone: what each of two processes does."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from engines_ranks import visible
from engines_text import ToyWriter, sequence_loss, text_batch, token_loss
from engines_toy import parts_of_rank

from rlinf.engines import FSDPTrainerConfig
from rlinf.engines.fsdp.resizing import rebuild, release

SIZES = {1: [[2, 1, 1, 2, 1]], 2: [[2, 1, 1], [3]]}
CASES = ("full_shard", "no_shard")
PLAN = (1, 2, 1, 2)
"""Ranks of each pair of steps."""


def config(name: str) -> FSDPTrainerConfig:
    """Adam as it is, with moments that matter."""
    found = visible(name)
    return replace(found, optim=replace(found.optim, lr=0.05, value_lr=0.05))


def rows(rank: int, world_size: int) -> list:
    """This rank's micro-batches of the same rows in the same order."""
    return parts_of_rank(text_batch(), SIZES[world_size], rank)


def steps(trainer, rank: int, world_size: int) -> list[float]:
    """The losses of two steps, which all ranks know."""
    mine = rows(rank, world_size)
    return [trainer.step(mine, loss)["loss"].mean for loss in (token_loss, sequence_loss)]


def fixed(name: str, count: int) -> tuple[list[float], dict]:
    """The same steps on one rank that stays alone."""
    trainer = config(name).build(ToyWriter(seed=0), rank=0, world_size=1, rendezvous="", training_steps=20)
    losses = [loss for _ in range(count) for loss in steps(trainer, 0, 1)]
    weights = trainer.weights().tensors
    trainer.close()
    return losses, dict(weights)


def changing(name: str, rank: int, rendezvous: list[str]) -> dict:
    """Rank 0 is always there; rank 1 comes and goes."""
    losses: list[float] = []
    seconds: list[float] = []
    trainer, state = None, None
    for at, count in enumerate(PLAN):
        began = time.monotonic()
        if trainer is not None:
            state = release(trainer)
            trainer = None
        where = {"rank": rank, "world_size": count, "rendezvous": rendezvous[at] if count > 1 else "", "training_steps": 20}
        if rank < count:
            policy = ToyWriter(seed=10 * at + rank)
            trainer = config(name).build(policy, **where) if at == 0 else rebuild(config(name), policy, state, **where)
        seconds.append(time.monotonic() - began)
        if trainer is not None:
            losses += steps(trainer, rank, count)
    found = {"losses": losses, "seconds": seconds, "version": trainer.version}
    weights = trainer.weights().tensors
    if rank == 0:
        expected, same = fixed_after(trainer, name)
        found["fixed"] = expected
        found["apart"] = max(float((weights[key] - same[key]).abs().max()) for key in same)
    else:
        trainer.close()
    return found


def fixed_after(trainer, name: str) -> tuple[list[float], dict]:
    """Only when this process is in no group any more."""
    trainer.close()
    return fixed(name, len(PLAN))


def run_resizing(rank: int, rendezvous: list[str], folder: Path) -> None:
    """All cases on two ranks, of which one comes and goes."""
    found = {name: changing(name, rank, rendezvous[len(PLAN) * at :]) for at, name in enumerate(CASES)}
    (folder / f"seen_{rank}.json").write_text(json.dumps(found))

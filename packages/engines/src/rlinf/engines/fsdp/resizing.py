"""Ranks that train together become more or fewer between two steps: the state goes from memory to memory, without a file.

old ranks ── gather ──► rank 0 ── (old group ends, new one meets) ── broadcast ──► new ranks ── each keeps its shard

Rank 0 is the same process before and after. Data is the caller's: as a step's gradient is that of Σ total / Σ weight over all
ranks, the same rows in the same order give the same losses, however many ranks share them.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.engines.fsdp.trainer_state import TrainerState

if TYPE_CHECKING:
    from rlinf.engines.fsdp._trainer import FSDPTrainer
    from rlinf.engines.fsdp.trainer import FSDPTrainerConfig
    from rlinf.engines.ranks import Ranks


def prepare() -> None:
    """Imports what the first move of a process would import; it takes seconds of a core, once.

    A rank that waits to be needed calls it while it waits, rank 0 before its first step or while the first rollout is under way.
    Without it the first `rebuild` of each process takes that much longer, and the other ranks wait for it.
    """
    # FSDP asks for the compiler at the first tensor that it shards, only to turn it off there.
    for name in ("torch._dynamo", "rlinf.engines.fsdp._sharded", "rlinf.engines.fsdp._trainer", "rlinf.engines.ranks"):
        import_module(name)


def release(trainer: FSDPTrainer) -> TrainerState:
    """The trainer's state; the trainer and its process group end. Every rank of it calls this.

    Raises:
        RLinfError: something is offloaded, or a checkpoint is still being written and fails.
    """
    state = trainer.state()
    trainer.close()
    return state if trainer.ranks.rank == 0 else TrainerState(version=state.version, tensors={})


def rebuild(
    config: FSDPTrainerConfig,
    policy: Any,
    state: TrainerState | None,
    *,
    rank: int,
    world_size: int,
    rendezvous: str,
    training_steps: int | None = None,
) -> FSDPTrainer:
    """A trainer that goes on from a state; every rank of the new group calls it.

    Args:
        config: as for the trainer before; how ranks share may differ.
        policy: a new one of the same model: the old trainer has replaced the parameters of its own.
        state: what `release` gave on rank 0; others may have None.
        rank: 0 … world_size − 1.
        world_size: how many ranks train from now on.
        rendezvous: another one than before, where they meet; "" for one rank.
        training_steps: optimizer steps of the whole run, as before.

    Raises:
        ConfigError: rank 0 has no state; what `build` refuses.
        ShapeError: it is the state of another model.
        DeadlineExceeded: another rank did not come in time.
    """
    if rank == 0 and (state is None or not state.tensors):
        raise ConfigError("rebuild(state)", "rank 0 has no state to go on from", "Rank 0 must have been rank 0 before.")
    trainer = config.build(policy, rank=rank, world_size=world_size, rendezvous=rendezvous, training_steps=training_steps)
    held = TrainerState(version=0, tensors={}) if state is None else state
    trainer.restore(_from_first(held, trainer.ranks))
    return trainer


def _from_first(state: TrainerState, ranks: Ranks) -> TrainerState:
    """What rank 0 has, on every rank."""
    if ranks.alone:
        return state
    named = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in state.tensors.items()]
    written = json.dumps([state.version, named]).encode()
    size = torch.tensor([len(written)], dtype=torch.int64)
    ranks.broadcast(size)
    # On other ranks only the length counts, as rank 0 overwrites it.
    header = torch.frombuffer(bytearray(written.ljust(int(size), b" ")[: int(size)]), dtype=torch.uint8).clone()
    ranks.broadcast(header)
    version, described = json.loads(header.numpy().tobytes())
    tensors: dict[str, Tensor] = {}
    for name, shape, dtype in described:
        tensor = state.tensors[name] if ranks.rank == 0 else torch.empty(shape, dtype=getattr(torch, dtype))
        ranks.broadcast(tensor)
        tensors[name] = tensor
    return TrainerState(version=version, tensors=tensors)

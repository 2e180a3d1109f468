"""The ranks that train together: how they meet, and how they add."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.core.errors import ConfigError, DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank's view of all; a single rank has no process group."""

    rank: int
    world_size: int

    @property
    def alone(self) -> bool:
        """Whether there is only this rank."""
        return self.world_size == 1

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over ranks, in a new tensor; every rank calls it."""
        if self.alone:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)  # pyright: ignore[reportUnknownMemberType]
        return total

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites `tensor` by that of rank 0; every rank calls it."""
        if not self.alone:
            dist.broadcast(tensor, src=0)  # pyright: ignore[reportUnknownMemberType]

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if not self.alone:
            dist.barrier()  # pyright: ignore[reportUnknownMemberType]

    def leave(self) -> None:
        """Ends the process group."""
        if not self.alone and dist.is_initialized():
            dist.destroy_process_group()


def join(rank: int, world_size: int, rendezvous: str, *, device: torch.device, timeout_s: float) -> Ranks:
    """Meets the other ranks: gloo for the CPU, and NCCL too if the weights are on a GPU.

    Args:
        rank: 0 … world_size − 1.
        world_size: how many ranks meet.
        rendezvous: `tcp://host:port`; "" for one rank.
        device: where the weights are.
        timeout_s: seconds to wait for the others, here and in every collective.

    Raises:
        ConfigError: several ranks without a rendezvous, or the process is in another group already.
        DeadlineExceeded: another rank did not come in time.
    """
    if world_size == 1:
        return Ranks(0, 1)
    place = f"trainer rank {rank} of {world_size}"
    if not rendezvous:
        raise ConfigError(place, "expected a rendezvous tcp://host:port, found none", "Launch each rank in its own process.")
    if dist.is_initialized():
        raise ConfigError(place, "this process is in a process group already", "Give each trainer a process of its own.")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    deadline = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=deadline)
    except (dist.DistError, TimeoutError) as error:
        raise DeadlineExceeded(place, f"the ranks did not meet at {rendezvous} in {timeout_s:g} s ({error})") from error
    return Ranks(rank, world_size)

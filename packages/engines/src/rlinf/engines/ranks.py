"""The ranks that train together: how they meet, and how they add."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.engines.rank_messages import RankMessages


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank's view of all; a single rank sends nothing."""

    rank: int
    world_size: int
    grouped: bool = False
    """Whether a single rank has a process group of its own, as FSDP wants."""
    messages: RankMessages | None = None
    """How ranks that share a process add; None where each has a process of its own."""

    @property
    def alone(self) -> bool:
        """Whether there is only this rank."""
        return self.world_size == 1

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over ranks, in a new tensor; every rank calls it."""
        if self.alone:
            return value
        if self.messages is not None:
            return self.messages.total(value)
        total = value.detach().clone()
        dist.all_reduce(total)  # pyright: ignore[reportUnknownMemberType]
        return total

    def all_gather(self, value: float) -> list[float]:
        """The number of each rank, in order; every rank calls it."""
        # Each rank writes into a place of its own. Float64 holds whole numbers up to 2⁵³ exactly.
        own = torch.zeros(self.world_size, dtype=torch.float64)
        own[self.rank] = value
        return cast("list[float]", self.all_reduce(own).tolist())  # pyright: ignore[reportUnknownMemberType]

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites `tensor` by that of rank 0; every rank calls it."""
        if self.messages is not None:
            self.messages.broadcast(tensor)
        elif not self.alone:
            dist.broadcast(tensor, src=0)  # pyright: ignore[reportUnknownMemberType]

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if self.messages is not None:
            self.messages.total(torch.zeros(()))
        elif not self.alone:
            dist.barrier()  # pyright: ignore[reportUnknownMemberType]

    def leave(self) -> None:
        """Ends the process group; that of a single rank with the last that uses it."""
        if self.messages is not None or (self.alone and not self.grouped):
            return
        if self.alone:
            _SINGLES.pop()
        if dist.is_initialized() and not _SINGLES:
            dist.destroy_process_group()


_SINGLES: list[int] = []
"""One entry for each trainer of this process that is a single rank in the process group, which they share."""


def join(rank: int, world_size: int, rendezvous: str, *, device: torch.device, timeout_s: float, grouped: bool = False) -> Ranks:
    """Meets the other ranks: gloo for the CPU, and NCCL too if the weights are on a GPU. Ranks of one process send messages.

    Args:
        rank: 0 … world_size − 1.
        world_size: how many ranks meet.
        rendezvous: `tcp://host:port`; "" for one rank, and for the ranks of a worker group that share a process.
        device: where the weights are.
        timeout_s: seconds to wait for the others, here and in every collective.
        grouped: whether a process group is needed; a single rank gets one without a rendezvous.

    Raises:
        ConfigError: several ranks without a rendezvous that are no workers of one process, or need a process group; or the process
            is in another group already.
        DeadlineExceeded: another rank did not come in time.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if world_size == 1:
        return _single(backend) if grouped else Ranks(0, 1)
    place = f"trainer rank {rank} of {world_size}"
    if not rendezvous:
        return _in_one_process(rank, world_size, timeout_s, place, grouped=grouped)
    if dist.is_initialized():
        raise ConfigError(place, "this process is in a process group already", "Give each trainer a process of its own.")
    deadline = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=deadline)
    except (dist.DistError, TimeoutError) as error:
        raise DeadlineExceeded(place, f"the ranks did not meet at {rendezvous} in {timeout_s:g} s ({error})") from error
    return Ranks(rank, world_size)


def _in_one_process(rank: int, world_size: int, timeout_s: float, place: str, *, grouped: bool) -> Ranks:
    messages = RankMessages.of_worker(rank, world_size, timeout_s)
    if messages is None or grouped:
        found = "expected a rendezvous tcp://host:port, found none"
        problem = found if messages is None else f"{found}, as ranks share a process and what they train with needs one for each"
        raise ConfigError(place, problem, "Launch each rank in its own process, as cluster.backend: ray does.")
    return Ranks(rank, world_size, messages=messages)


def _single(backend: str) -> Ranks:
    if not dist.is_initialized():
        # A store in this process: nobody else is to be met, and no port is needed.
        dist.init_process_group(backend, store=cast("Any", dist).HashStore(), rank=0, world_size=1)
    elif dist.get_world_size() != 1:
        raise ConfigError(
            "trainer", "this process is in a process group of several ranks", "Give each trainer a process of its own."
        )
    _SINGLES.append(1)
    return Ranks(0, 1, grouped=True)

"""What every worker of an embodied run must know of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.core.tree import Tree
from rlinf.runners.embodied.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Derived once from the configuration and the groups' sizes; the same object goes to all workers."""

    spec: EnvSpec
    """What the policy sees and does."""
    actor: str
    """The name of the actor group."""
    actor_ranks: int
    """The size of the actor group."""
    rollout: str
    """The name of the rollout group."""
    rollout_ranks: int
    """The size of the rollout group."""
    slots: Mapping[str, tuple[Slot, ...]]
    """The slots of "train" and of "eval"."""

    def rollout_rank(self, slot: Slot) -> int:
        """Which rollout worker serves a slot."""
        return slot.index % self.rollout_ranks

    def served_by(self, rank: int, mode: str) -> int:
        """How many slots a rollout worker serves."""
        return sum(self.rollout_rank(slot) == rank for slot in self.slots[mode])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an env worker asks a rollout worker: an action for each observation, and the value of each."""

    slot: int
    """The slot that asks; the answer goes to the queue of that number."""
    key: tuple[int, ...]
    """What makes the random numbers of the answer its own: iteration, epoch, step."""
    obs: Tree[Any] | None
    """Observations, each leaf `[n, *]`; None says that the slot is done."""

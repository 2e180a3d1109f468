"""The numbered initial states of an environment, and which of them an episode starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlinf.core.random import keyed_seed

_MANY: Final = 2**31
"""As many initial states has an environment that makes them from a number."""


@dataclass(frozen=True, slots=True)
class ResetStates:
    """Reset-state ids: id `r` of `T` tasks is initial state `r // T` of task `r % T`, so that ids go round the tasks."""

    count: int
    """How many ids there are."""
    tasks: int
    """T; 0 for an environment that can't be asked for a task."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], states: int | None = None) -> ResetStates | None:
        """Those of an environment by its metadata (`reset_options`, `tasks`, `init_ids`); None if it numbers none.

        Args:
            metadata: of the environment.
            states: initial states of a task; if None what `init_ids` says, and without limit if that is missing.
        """
        takes = metadata.get("reset_options", ())
        if "init_id" not in takes:
            return None
        tasks = max(len(metadata.get("tasks", ())), 1) if "task" in takes else 0
        states = states or metadata.get("init_ids")
        return cls(_MANY if states is None else states * max(tasks, 1), tasks)

    def ordered(self, start: int, group: int, groups: int) -> int:
        """The id of the start-th start of a group, if `groups` of them take all ids in turn."""
        return (start * groups + group) % self.count

    def drawn(self, seed: int, group: int, start: int) -> int:
        """The id of the start-th start of a group, drawn by the seed."""
        return keyed_seed(seed, "reset_state", group, start) % self.count

    def options(self, ids: Sequence[int]) -> dict[str, list[int]]:
        """What `reset` is given, one id for each environment."""
        options = {"init_id": [number // max(self.tasks, 1) for number in ids]}
        return options | ({"task": [number % self.tasks for number in ids]} if self.tasks else {})

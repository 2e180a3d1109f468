"""What a shard of environments was asked since its running episodes began, so that another process can take its place.

By the contract an environment's state follows from its own last reset and the actions since. So the resets and actions of the
running episodes are enough; as every episode ends, they are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.tree import tree_leaves
from rlinf.envs.remote.encoding import unpack

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ResetCall:
    """Which environments of a shard are reset, and how."""

    mask: Flags
    """`[n]`."""
    seeds: tuple[int, ...]
    """`[n]`; what stands outside the mask means nothing."""
    options: Mapping[str, tuple[Any, ...]]
    """Columns `[n]`, such as `task`."""

    def fields(self) -> dict[str, Any]:
        """As a request to a simulator's process."""
        options = {key: list(column) for key, column in self.options.items()}
        return {"seed": list(self.seeds), "mask": self.mask.tolist(), "options": options}


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step of a shard."""

    actions: NDArray[Any]
    """`[n, *]`."""
    active: Flags | None
    """`[n]`, which environments take it; None: all."""

    def fields(self) -> dict[str, Any]:
        """As a request to a simulator's process, but for the actions."""
        return {"active": None if self.active is None else self.active.tolist()}


Call = ResetCall | StepCall


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returned for a shard, but for its observation."""

    reward: NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    form: Mapping[str, Any]
    payload: bytes

    @property
    def infos(self) -> dict[str, Any]:
        """Made anew each time."""
        return unpack(self.form, self.payload)

    @property
    def done(self) -> Flags:
        """`[n]`, which episodes have ended."""
        return self.terminated | self.truncated

    def agrees(self, other: StepResult, rows: Flags) -> bool:
        """Whether two results are the same to the bit in some rows."""
        mine, theirs = (
            {"reward": r.reward, "terminated": r.terminated, "truncated": r.truncated, **r.infos} for r in (self, other)
        )
        return [(k, _row_bytes(leaf, rows)) for k, leaf in tree_leaves(mine)] == [
            (k, _row_bytes(leaf, rows)) for k, leaf in tree_leaves(theirs)
        ]


def _row_bytes(leaf: Any, rows: Flags) -> Any:
    # Compared as bytes, NaN equals itself.
    return leaf[rows].tobytes() if np.ndim(leaf) and len(leaf) == len(rows) else leaf


class ReplayLog:
    """The running episodes of a shard of `n` environments."""

    def __init__(self, n: int) -> None:
        # The step at which each episode began; -1 before the first reset.
        self._begun = np.full(n, -1)
        self._seeds = [0] * n
        self._options: list[dict[str, Any]] = [{} for _ in range(n)]
        self._steps: list[StepCall] = []
        self._first = 0
        self.last: StepResult | None = None
        """Of the last step; None after a reset of all."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reset yet."""
        return bool((self._begun < 0).any())

    @property
    def compared(self) -> Flags:
        """`[n]`, which environments took part in the last step with the episode that they have now."""
        return self._begun < self._now

    @property
    def _now(self) -> int:
        return self._first + len(self._steps)

    def add_reset(self, done: ResetCall) -> None:
        """Notes a reset that was answered."""
        for index in np.flatnonzero(done.mask):
            self._begun[index] = self._now
            self._seeds[index] = done.seeds[index]
            self._options[index] = {key: column[index] for key, column in done.options.items()}
        if done.mask.all():
            # The former result speaks of episodes that no longer run.
            self.last = None
        # No running episode began before this step, so that the log stays as short as the longest of them.
        needless = int(self._begun.min()) - self._first
        if needless > 0:
            del self._steps[:needless]
            self._first += needless

    def add_step(self, step: StepCall, result: StepResult) -> None:
        """Notes a step that was answered; its actions are copied."""
        # The actions are a view of the caller's array, which may be written again.
        self._steps.append(StepCall(step.actions.copy(), step.active))
        self.last = result

    def calls(self) -> Iterator[Call]:
        """The resets and actions that bring a new process to the present.

        An environment whose episode began later than another's is stepped through actions that were not meant for it until its own
        reset comes. Whoever replays may have to reset it in between; its seed is as good as any (`beginning_of`).
        """
        yield self.beginning_of(np.ones(len(self._begun), np.bool_))
        for time, step in enumerate(self._steps, start=self._first):
            beginning = self._begun == time
            # At the first step the reset of all, above, has begun them already.
            if time > self._first and beginning.any():
                yield self.beginning_of(beginning)
            # What the former episodes did no longer matters, so that none of them has to stand still.
            yield step if step.active is None else StepCall(step.actions, step.active | (self._begun > time))
        beginning = self._begun == self._now
        if self._steps and beginning.any():
            yield self.beginning_of(beginning)

    def beginning_of(self, mask: Flags) -> ResetCall:
        """The reset with which the present episodes of some environments began."""
        keys = {key for options in self._options for key in options}
        columns = {key: tuple(options.get(key) for options in self._options) for key in keys}
        return ResetCall(mask, tuple(self._seeds), columns)


def columns_of(options: Mapping[str, Any], shard: range) -> dict[str, tuple[Any, ...]]:
    """The rows of a shard of the options of a reset, `[N]` each, as plain values."""
    return {key: tuple(map(_plain, _rows(column, shard))) for key, column in options.items()}


def _rows(column: Any, shard: range) -> Sequence[Any]:
    return column[shard.start : shard.stop]


def _plain(value: Any) -> Any:
    # `json` refuses NumPy's scalars.
    return cast("np.generic[Any]", value).item() if isinstance(value, np.generic) else value

"""Environments that play several tasks: which one is asked for, and simulations that are lent from reset to reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import gymnasium

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.random import keyed_generator


class Closable(Protocol):
    """What a pool keeps."""

    def close(self) -> None:
        """Frees it."""
        ...


S = TypeVar("S", bound=Closable)


class Pool(Generic[S]):
    """Simulations by task: built when first needed, given back at a reset, and lent to whoever plays the task next.

    Args:
        build: makes the simulation of a task, given its name.
        keep: how many are kept idle, the oldest is closed first; None: all.
    """

    def __init__(self, build: Callable[[str], S], keep: int | None = None) -> None:
        self._build = build
        self._keep = keep
        self._idle: list[tuple[str, S]] = []

    def take(self, name: str) -> S:
        """A simulation of the task, the one given back last if there is any."""
        for at in reversed(range(len(self._idle))):
            if self._idle[at][0] == name:
                return self._idle.pop(at)[1]
        return self._build(name)

    def give(self, name: str, simulation: S) -> None:
        """Gives a simulation of the task back."""
        self._idle.append((name, simulation))

    def trim(self) -> None:
        """Closes what is kept beyond the limit."""
        while self._keep is not None and len(self._idle) > self._keep:
            self._idle.pop(0)[1].close()

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop()[1].close()


class PooledTask(gymnasium.Env[Any, Any], Generic[S]):
    """One environment that plays several tasks: which one changes from reset to reset, and with it what is simulated.

    Args:
        pool: where its simulations come from.
        names: of the tasks, by number.
        ignore_terminations: never say that an episode terminated.
    """

    def __init__(self, pool: Pool[S], names: Sequence[str], ignore_terminations: bool) -> None:
        self.terminates = not ignore_terminations
        self.number = 0
        """The task."""
        self._pool, self.names = pool, names
        self._simulation: S | None = None

    @property
    def simulation(self) -> S:
        """What is simulated now."""
        if self._simulation is None:
            raise ConfigError("env", "the environment was never reset", "Call env.reset(seed=…) first.")
        return self._simulation

    def change(self, number: int) -> S:
        """Plays a task from now on; the simulation goes on if it is the same one."""
        if self._simulation is None or number != self.number:
            # First, as it goes back under the number that it was taken with.
            self._give_back()
            self.number, self._simulation = number, self._pool.take(self.names[number])
            # After `take`, or the simulation that is wanted might be the one that is closed.
            self._pool.trim()
        return self._simulation

    def close(self) -> None:
        """Closes it, and what is idle."""
        self._give_back()
        self._pool.close()

    def _give_back(self) -> None:
        if self._simulation is not None:
            self._pool.give(self.names[self.number], self._simulation)
            self._simulation = None


def choose(task: str | int | None, seed: int, names: Sequence[str], texts: Sequence[str]) -> int:
    """The number of the task to play.

    Args:
        task: a name, a description or a number; None lets the seed draw one.
        seed: of the reset.
        names: of the tasks, by number.
        texts: their descriptions, by number.

    Raises:
        ConfigError: there is no such task.
    """
    if task is None:
        return int(keyed_generator(seed, "task").integers(len(names)))
    if not isinstance(task, str):
        if 0 <= task < len(names):
            return int(task)
    else:
        for known in (names, texts):
            if task in known:
                return known.index(task)
    remedy = did_you_mean(str(task), names, label=f"Tasks, numbered 0 to {len(names) - 1}")
    raise ConfigError("env.reset", f"there is no task {task!r}", remedy)

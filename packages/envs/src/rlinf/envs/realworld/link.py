"""`Link`: what lies between whoever commands and the controller: a latency, and frames that are lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from rlinf.core.config import expect_range
from rlinf.core.random import keyed_generator
from rlinf.envs.realworld.robot import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFaults:
    """A link that is worse than the real one, to find out what a policy and its safety make of it."""

    latency_s: float = 0.0
    """Seconds by which commands arrive later, and by which readings are old."""
    drop: float = 0.0
    """Share of the commands, and of the readings, that never arrive: the command before stays in force, or the watchdog acts; the
    reading before is repeated."""
    seed: int = 0
    """Of what is lost; together with the seed of an episode."""

    def __post_init__(self) -> None:
        expect_range("latency_s", self.latency_s, 0.0, 1.0)
        expect_range("drop", self.drop, 0.0, 1.0)


class Link:
    """Commands on their way to the controller, and readings on their way back.

    Args:
        faults: how bad it is.
    """

    def __init__(self, faults: LinkFaults) -> None:
        self._faults = faults
        self._commands: deque[tuple[float, Command]] = deque()
        self._readings: deque[tuple[float, dict[str, Any]]] = deque()
        self._last: dict[str, Any] | None = None
        self.dropped = 0
        self.restart(0)

    @property
    def delayed(self) -> bool:
        """Whether readings are old when they arrive."""
        return self._faults.latency_s > 0

    def restart(self, seed: int) -> None:
        """Forgets what is on its way, and draws anew."""
        self._commands.clear()
        self._readings.clear()
        self._last = None
        self._random = keyed_generator(self._faults.seed, "robot link", seed)

    def send(self, command: Command, now: float) -> None:
        """Puts a command on its way."""
        if self._lost():
            return
        self._commands.append((now + self._faults.latency_s, command))

    def arrived(self, now: float) -> Command | None:
        """The newest command that has arrived since the last call."""
        command = None
        while self._commands and self._commands[0][0] <= now:
            command = self._commands.popleft()[1]
        return command

    def observe(self, reading: dict[str, Any], now: float) -> None:
        """Puts what the robot says on its way."""
        self._readings.append((now + self._faults.latency_s, reading))

    def observed(self, now: float) -> dict[str, Any] | None:
        """The newest reading that has arrived; None before the first."""
        arrived = None
        while self._readings and self._readings[0][0] <= now:
            arrived = self._readings.popleft()[1]
        # The first reading always arrives, as there is none before it that could be repeated.
        if arrived is not None and not (self._last is not None and self._lost()):
            self._last = arrived
        return self._last

    def _lost(self) -> bool:
        if self._faults.drop and self._random.random() < self._faults.drop:
            self.dropped += 1
            return True
        return False

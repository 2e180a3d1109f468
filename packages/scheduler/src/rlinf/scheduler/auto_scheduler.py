"""`cluster.auto_scheduler`: whether work moves at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlinf.core.cluster.handover import Handover, HandoverPolicy, Load
from rlinf.core.config import expect_at_least, expect_range


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSchedulerConfig:
    """Whether work goes from workers that still have much of it to workers that have drained, within a step."""

    policy: Literal["never", "forecast"] = "never"
    """`never`: responses stay on their rollout worker. `forecast`: they move if that is expected to end the step sooner."""
    hysteresis: float = 1.5
    """The expected gain of a move must be this many times its cost; a larger value moves less."""
    move_s: float = 0.5
    """The assumed cost of a move, in seconds, until one was measured."""

    def __post_init__(self) -> None:
        expect_at_least("hysteresis", self.hysteresis, 1, "1 moves whenever it pays.")
        expect_range("move_s", self.move_s, 0.0, 1e6, open_high=True)

    def work(self) -> HandoverPolicy | None:
        """Who moves items between the workers of a group; None for nobody."""
        return None if self.policy == "never" else EvenOut(self)


class EvenOut:
    """A worker that has drained gets half of the items of the one with most, if that ends them sooner.

    What has lasted t seconds lasts about t more, as lengths with long tails do, and half the items are done in half that time. The
    gain, t / 2, must be more than `hysteresis` times what a handover has taken so far.

    Args:
        config: how sure it must be.
    """

    def __init__(self, config: AutoSchedulerConfig) -> None:
        self._hysteresis, self._move_s = config.hysteresis, config.move_s
        self._measured: list[float] = []

    def next_handover(self, loads: Sequence[Load]) -> Handover | None:
        """From the fullest to the first that has drained."""
        idle = [load for load in loads if not load.items]
        full = max(loads, key=lambda load: (load.items, -load.rank), default=None)
        if full is None or not idle or full.items < 2 or full.since_s / 2 <= self._hysteresis * self._move_s:
            return None
        return Handover(giver=full.rank, taker=idle[0].rank, items=full.items // 2)

    def took(self, seconds: float) -> None:
        """The mean of what was measured takes the place of `move_s`."""
        self._measured.append(seconds)
        self._move_s = sum(self._measured) / len(self._measured)

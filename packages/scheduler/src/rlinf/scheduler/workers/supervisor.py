"""`Supervisor`: what happens to a group when one of its processes fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError

IDEMPOTENT = "__rlinf_idempotent__"
"""The attribute that the decorator `idempotent` sets."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The policy of a worker group.

        group = Rollout.create_group().launch(cluster, supervisor=Supervisor("restart", idempotent=("generate",)))

    A restarted rank is a new process in the same place: its constructor runs again, and nothing of its old state is left. What
    waited in queues that the failed process hosted is lost, which the log says; the rest of the cluster goes on; a send to the
    rank, or a call of it, waits for its return. On the `local` back-end no process can die, so that a policy changes nothing there.
    """

    policy: Literal["fail", "restart"] = "fail"
    """`fail`: the failure of a process ends the run. `restart`: the process is started again."""
    max_restarts: int = 3
    """How many restarts each rank has within `window_s`; the next failure ends the run."""
    window_s: float = math.inf
    """Seconds after which a restart no longer counts; by default all count."""
    backoff_s: float = 0.5
    """Seconds before the first restart; each further one within the window waits twice as long as the one before."""
    idempotent: Sequence[str] = ()
    """Methods that may run twice: their calls are issued again after a restart, others fail. Beside those that the decorator
    `idempotent` marks."""

    def __post_init__(self) -> None:
        if self.policy not in ("fail", "restart"):
            raise ConfigError("supervisor.policy", f"expected 'fail' or 'restart', found {self.policy!r}")
        expect_at_least("supervisor.max_restarts", self.max_restarts, 0)
        expect_range("supervisor.window_s", self.window_s, 0.0, open_low=True)
        expect_range("supervisor.backoff_s", self.backoff_s, 0.0, open_high=True)
        if isinstance(self.idempotent, str):
            raise ConfigError("supervisor.idempotent", f"expected names, found the text {self.idempotent!r}", "Write a tuple.")

    def check(self, worker: type[Any], place: str) -> None:
        """Refuses names that the worker's class does not have.

        Raises:
            ConfigError: a name in `idempotent` is no method of the class.
        """
        for method in self.idempotent:
            if not callable(getattr(worker, method, None)):
                raise ConfigError(f"{place}: supervisor.idempotent", f"{worker.__name__} has no method '{method}'")

    def delay(self, restarts: Sequence[float], now: float) -> float | None:
        """Seconds to wait before the next restart; None if there is none left.

        Args:
            restarts: when the rank was restarted before, by the same clock as `now`.
            now: seconds.
        """
        recent = sum(now - then < self.window_s for then in restarts)
        if self.policy == "fail" or recent >= self.max_restarts:
            return None
        return self.backoff_s * 2**recent

    def reissues(self, worker: type[Any], method: str) -> bool:
        """Whether a call of a method is issued again after a restart."""
        if self.policy == "fail":
            return False
        return method in self.idempotent or getattr(getattr(worker, method, None), IDEMPOTENT, False)

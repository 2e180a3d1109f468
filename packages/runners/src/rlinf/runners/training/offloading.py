"""A trainer that is on its devices only while it works, so that a rollout on the same ones has their memory meanwhile.

What it takes there, and how long it needs to come and to leave, is in the trace of the run.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from rlinf.core.capabilities import HasOffload
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import Trainer
from rlinf.core.worker import Worker
from rlinf.runners.config.schema import ActorConfig
from rlinf.runners.training.memory import record_memory

LOAD, OFFLOAD = "load", "offload"
"""The timers of the worker in which its trainer comes and leaves, as the planner knows them."""


class Offloading:
    """Takes a trainer to host memory at once, and back for a while; does nothing without `actor.offload`.

    Args:
        trainer: that of this rank.
        actor: says whether, and names the trainer.
        worker: whose trainer it is.

    Raises:
        ConfigError: the trainer can't leave its devices.
    """

    def __init__(self, trainer: Trainer, actor: ActorConfig, worker: Worker) -> None:
        if actor.offload and not isinstance(trainer, HasOffload):
            problem = f"the trainer '{actor.training_backend}' can't leave its devices"
            raise ConfigError("actor.offload", problem, "Set it to false, or choose the trainer fsdp.")
        self._worker = worker
        self._any = trainer
        self._trainer = cast("HasOffload", trainer) if actor.offload else None
        if self._trainer is not None:
            self._trainer.offload()

    @contextmanager
    def onloaded(self, *parts: str) -> Generator[None]:
        """Inside, the trainer is on its devices: `parameters`, `gradients` and `optimizer`, or those that are named."""
        if self._trainer is None:
            yield
            record_memory(self._worker, self._any)
            return
        with self._worker.worker_timer(LOAD):
            self._trainer.onload(*parts)
        try:
            yield
            record_memory(self._worker, self._any)
        finally:
            with self._worker.worker_timer(OFFLOAD):
                self._trainer.offload()

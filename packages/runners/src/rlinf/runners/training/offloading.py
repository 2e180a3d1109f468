"""A trainer that is on its devices only while it works, so that a rollout on the same ones has their memory meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from rlinf.core.capabilities import HasOffload
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import Trainer
from rlinf.runners.config.schema import ActorConfig


class Offloading:
    """Takes a trainer to host memory at once, and back for a while; does nothing without `actor.offload`.

    Args:
        trainer: that of this rank.
        actor: says whether, and names the trainer.

    Raises:
        ConfigError: the trainer can't leave its devices.
    """

    def __init__(self, trainer: Trainer, actor: ActorConfig) -> None:
        if actor.offload and not isinstance(trainer, HasOffload):
            problem = f"the trainer '{actor.training_backend}' can't leave its devices"
            raise ConfigError("actor.offload", problem, "Set it to false, or choose the trainer fsdp.")
        self._trainer = cast("HasOffload", trainer) if actor.offload else None
        if self._trainer is not None:
            self._trainer.offload()

    @contextmanager
    def onloaded(self, *parts: str) -> Generator[None]:
        """Inside, the trainer is on its devices: `parameters`, `gradients` and `optimizer`, or those that are named."""
        if self._trainer is None:
            yield
            return
        self._trainer.onload(*parts)
        try:
            yield
        finally:
            self._trainer.offload()

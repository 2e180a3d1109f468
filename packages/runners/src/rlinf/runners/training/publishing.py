"""How an actor gives its weights to the workers that act."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.core.capabilities import LazyWeights
from rlinf.core.off_policy import OffPolicyTrainer
from rlinf.core.protocols import Messenger, Trainer, WeightSync


def publish(
    trainer: Trainer | OffPolicyTrainer, sync: WeightSync, messenger: Messenger, *, rank: int, group: str, receivers: Sequence[int]
) -> int:
    """Sends the trainer's weights to workers; every rank of the actor calls it, and the first one sends.

    Sharded weights are put together tensor by tensor where the trainer can do that, so that no rank ever holds two copies.

    Args:
        trainer: this rank's.
        sync: how weights travel.
        messenger: this rank's.
        rank: this rank.
        group: the receivers' group.
        receivers: their ranks.

    Returns:
        The version of the weights.
    """
    if isinstance(trainer, LazyWeights):
        weights = trainer.lazy_weights()
        # The other ranks only help to put weights together.
        sync.send(messenger, weights, group, receivers if rank == 0 else ())
        return weights.version
    weights = trainer.weights()
    if rank == 0:
        sync.send(messenger, weights, group, receivers)
    return weights.version

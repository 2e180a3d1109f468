"""Moving weights from one worker to others.

    receiver ──manifest──▶ sender            what the receiver holds: names, shapes, types
    receiver ◀──payload─── sender            the tensors and their version, or the reason why there are none

The sender answers every receiver, so a mismatch, or a receiver that never asks, is an error on all sides and not a wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlinf.core.config import expect_seconds
from rlinf.core.data import Weights
from rlinf.core.errors import RLinfError, WeightSyncError
from rlinf.core.protocols import Messenger
from rlinf.engines.lazy import LazyTensors, Walk
from rlinf.engines.manifest import Manifest
from rlinf.engines.raw import dtype_of
from rlinf.engines.weight_sync.terms import compare, gather_only

MANIFEST = "weights/manifest"
PAYLOAD = "weights/payload"
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a sender publishes."""

    version: int
    """The optimizer steps that made the weights."""
    manifest: Manifest
    """What the bytes stand for."""
    tensors: Mapping[str, Bytes]
    """The bytes of each tensor, by name."""
    extra: Mapping[str, Any]
    """`Weights.extra`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no payload."""

    problem: str


@dataclass(frozen=True, slots=True)
class FullWeightSync:
    """Sends every tensor in full, by name: `weight_syncer.type: full`."""

    timeout_s: float = 300.0
    """Seconds that one side waits for the other."""
    cast: bool = False
    """Whether floating weights may have another type at the receivers, the same at all of them, to which they are cast first."""

    def __post_init__(self) -> None:
        expect_seconds("timeout_s", self.timeout_s)

    def send(self, comm: Messenger, weights: Weights[Tensor], group: str, ranks: Sequence[int]) -> None:
        """Publishes weights to workers of a group, once all of them hold the same names, shapes and types.

        Args:
            comm: the sender's messenger.
            weights: what to publish; not changed. If ranks put its tensors together (`LazyTensors`), each of them calls this.
            group: the receivers' group.
            ranks: their ranks; none for a rank that only helps to put weights together.

        Raises:
            WeightSyncError: a receiver holds something else; names the first tensor that differs. No receiver gets anything.
            DeadlineExceeded: a receiver did not ask in time. The others are told.
        """
        manifest = Manifest.of(weights.tensors)
        if not ranks:
            gather_only(weights, manifest.names)
            return
        with Walk(weights.tensors, manifest.names) as walk:
            held = self._agree(comm, manifest, group, ranks)
            types = {entry.name: dtype_of(entry.dtype) for entry in held.entries}
            own = not isinstance(weights.tensors, LazyTensors)
            typed = ((name, tensor.to(types[name])) for name, tensor in walk)
            tensors = {name: _to_bytes(tensor if own else tensor.to("cpu", copy=True)) for name, tensor in typed}
        payload = Payload(weights.version, held, tensors, weights.extra)
        for rank in ranks:
            comm.send(payload, group, rank, tag=PAYLOAD)

    def casting(self) -> FullWeightSync:
        """See `rlinf.core.capabilities.HasCasting`."""
        return replace(self, cast=True)

    def _agree(self, comm: Messenger, manifest: Manifest, group: str, ranks: Sequence[int]) -> Manifest:
        """What all receivers hold, once it fits the manifest; otherwise tells all of them that nothing comes."""
        agreed = manifest
        try:
            for number, rank in enumerate(ranks):
                held: Manifest = comm.recv(group, rank, tag=MANIFEST, timeout=self.timeout_s)
                compare(f"weights to {group}[{rank}]", held, agreed, cast=self.cast and not number)
                agreed = held
            return agreed
        except RLinfError as error:
            for rank in ranks:
                comm.send(Refusal(str(error)), group, rank, tag=PAYLOAD)
            raise

    def recv(self, comm: Messenger, current: Weights[Tensor], group: str, rank: int) -> Weights[Tensor]:
        """The weights that a worker publishes.

        Args:
            comm: the receiver's messenger.
            current: what the receiver holds; only its names, shapes and types are used.
            group: the sender's group.
            rank: the sender's rank.

        Returns:
            Tensors on the CPU in memory of their own, and the sender's version.

        Raises:
            WeightSyncError: the two sides differ, or the sender gave up; the message says in what, or why.
            DeadlineExceeded: the sender did not answer in time.
        """
        place = f"weights from {group}[{rank}]"
        manifest = Manifest.of(current.tensors)
        comm.send(manifest, group, rank, tag=MANIFEST)
        answer = comm.recv(group, rank, tag=PAYLOAD, timeout=self.timeout_s)
        if isinstance(answer, Refusal):
            raise WeightSyncError(place, f"the sender published nothing ({answer.problem})")
        payload = cast("Payload", answer)
        compare(place, manifest, payload.manifest)
        tensors = {name: _from_bytes(payload.tensors[name], current.tensors[name]) for name in sorted(current.tensors)}
        return Weights(tensors=tensors, version=payload.version, extra=payload.extra)


def _to_bytes(tensor: Tensor) -> Bytes:
    """The tensor's memory as bytes, without a copy where it is contiguous and on the CPU; travels without torch's pickling."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _from_bytes(data: Bytes, like: Tensor) -> Tensor:
    """A tensor with the shape and type of `like`, in memory of its own."""
    tensor = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    _to_bytes(tensor)[...] = data
    return tensor

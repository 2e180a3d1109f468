"""Whether an actor and a rollout hold the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rlinf.core.data import Weights
from rlinf.core.errors import WeightSyncError
from rlinf.engines.checksum import checksum
from rlinf.engines.manifest import CASTABLE, Manifest
from rlinf.engines.tensor_bytes import dtype_of


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A version and the checksum of each tensor: small enough to be sent at every step."""

    version: int
    checksums: Mapping[str, str]
    """By sorted name."""

    @staticmethod
    def of(weights: Weights[Tensor], *, like: Manifest | None = None) -> Fingerprint:
        """That of some weights.

        Args:
            weights: if they are put together lazily, every rank that shares them calls this.
            like: floating tensors are cast to its types first, so that an actor in float32 compares with a rollout in bfloat16.
        """
        kinds = {entry.name: entry.dtype for entry in like.entries} if like else {}

        def cast(name: str, tensor: Tensor) -> Tensor:
            kind = kinds.get(name, str(tensor.dtype))
            return tensor.to(dtype_of(kind)) if {kind, str(tensor.dtype)} <= CASTABLE else tensor

        return Fingerprint(weights.version, {name: checksum(cast(name, weights.tensors[name])) for name in sorted(weights.tensors)})

    def expect(self, other: Fingerprint, *, place: str) -> None:
        """Compares what the actor has (this) with what a rollout has.

        Raises:
            WeightSyncError: versions or tensors differ; names the first tensor, and says how many.
        """
        mine, theirs = self.checksums, other.checksums
        differ = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        if differ:
            problem = f"{len(differ)} of {len(mine)} tensors are not the actor's, the first is {differ[0]}"
            versions = f"version {other.version}, the actor's is {self.version}"
            raise WeightSyncError(place, f"{problem}; {versions}", "Synchronise weights, and look for tied or cached ones.")
        if self.version != other.version:
            problem = f"the weights are the actor's, but say version {other.version} instead of {self.version}"
            raise WeightSyncError(place, problem, "Take over the version with the weights.")

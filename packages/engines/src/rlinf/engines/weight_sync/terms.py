"""On what sender and receivers must agree before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlinf.core.config import expect_seconds
from rlinf.core.data import Weights
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.engines.lazy import LazyTensors, Walk
from rlinf.engines.manifest import Manifest
from rlinf.engines.raw import dtype_of
from rlinf.engines.weight_sync.messages import Consent

REMEDY = "Build both models from the same configuration."


def check_common(timeout_s: float, **part_size: int) -> None:
    """Refuses parameters that every way has and that can't be; the size of a part has its key."""
    expect_seconds("timeout_s", timeout_s)
    for key, size in part_size.items():
        if size < 1:
            raise ConfigError(key, f"expected at least 1 byte, found {size}")


def chosen(weights: Weights[Tensor], only: Sequence[str]) -> Manifest:
    """What is sent of some weights.

    Raises:
        ConfigError: that would be nothing.
    """
    manifest = Manifest.of(weights.tensors)
    part = manifest.only(only)
    if manifest.entries and not part.entries:
        problem = f"{list(only)} matches none of {len(manifest.entries)} tensors, such as {manifest.names[0]}"
        raise ConfigError("weight_syncer.only", problem, "Write patterns like '*.lora_A.*'.")
    return part


def compare(place: str, held: Manifest, published: Manifest, *, cast: bool = False) -> None:
    """Refuses weights that do not fit what a receiver holds.

    Raises:
        WeightSyncError: names the first tensor that differs.
    """
    difference = None if held.digest == published.digest else held.difference(published, cast=cast)
    if difference:
        raise WeightSyncError(place, f"the receiver's model differs at {difference}", REMEDY)


def types_held(group: str, consents: Sequence[Consent]) -> Mapping[str, torch.dtype]:
    """The type of each tensor at the receivers.

    Raises:
        WeightSyncError: they hold different ones.
    """
    first = consents[0].manifest
    for consent in consents[1:]:
        compare(f"weights to {group}, receivers among themselves", first, consent.manifest)
    return {entry.name: dtype_of(entry.dtype) for entry in first.entries}


def holds_exactly(held: str, travels: str) -> bool:
    """Whether a type can hold every value of another: bfloat16 fits into float32, and not the other way round."""
    return held == travels or torch.promote_types(dtype_of(held), dtype_of(travels)) == dtype_of(held)


def names_of_pass(weights: Weights[Tensor], part: Manifest, *, verify: bool) -> list[str]:
    """The order in which all ranks of a trainer put weights together: what is sent, then, to verify, the rest."""
    sent = part.names
    if not verify:
        return sent
    known = set(sent)
    return [*sent, *(name for name in Manifest.of(weights.tensors).names if name not in known)]


def gather_only(weights: Weights[Tensor], names: Sequence[str]) -> None:
    """What a rank does that shares the weights of a trainer and sends nothing."""
    with Walk(weights.tensors, names if isinstance(weights.tensors, LazyTensors) else ()) as walk:
        for _ in walk:
            pass


def device_of(weights: Weights[Tensor]) -> torch.device:
    """Where the tensors are."""
    if isinstance(weights.tensors, LazyTensors):
        return weights.tensors.device
    return next((tensor.device for tensor in weights.tensors.values()), torch.device("cpu"))

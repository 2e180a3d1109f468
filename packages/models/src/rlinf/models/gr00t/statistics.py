"""Statistics of states and actions: from the metadata of a public checkpoint, or from the bounds of an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.core.data import ArraySpec
from rlinf.core.errors import CheckpointError


def from_metadata(metadata: Mapping[str, Any], embodiment_tag: str, kind: str, keys: Sequence[str] = ()) -> dict[str, Tensor]:
    """The least and the greatest of all parts of a robot, one after the other.

    Args:
        metadata: of `experiment_cfg/metadata.json`: by tag, `statistics`, by kind and part `min` and `max`.
        embodiment_tag: the robot.
        kind: "state" or "action".
        keys: the parts and their order; that of the file if none.

    Raises:
        CheckpointError: the robot or a part is not there.
    """
    if embodiment_tag not in metadata:
        raise CheckpointError("metadata.json", f"expected the robot '{embodiment_tag}', found {list(metadata)}")
    parts = metadata[embodiment_tag]["statistics"][kind]
    missing = [key for key in keys if key not in parts]
    if missing:
        raise CheckpointError(f"metadata.json.{kind}", f"expected the parts {missing}, found {list(parts)}")
    chosen = [parts[key] for key in keys or parts]
    low, high = (torch.tensor([x for part in chosen for x in part[name]], dtype=torch.float32) for name in ("min", "max"))
    return widened(low, high)


def from_bounds(spec: ArraySpec) -> dict[str, Tensor] | None:
    """The bounds of an environment as statistics; None if they are not finite."""
    if spec.low is None or spec.high is None:
        return None
    low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in (spec.low, spec.high))
    return widened(low, high) if bool(torch.isfinite(low).all() and torch.isfinite(high).all()) else None


def widened(low: Tensor, high: Tensor) -> dict[str, Tensor]:
    """Bounds; a number that never varied gets some, so that it is normalised to 0."""
    constant = (low == high).float()
    return {"min": low - constant, "max": high + constant}

"""Statistics of states and actions: from the metadata of a public checkpoint, or from the bounds of an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.core.data import ArraySpec
from rlinf.models.gr00t.metadata import ranges


def from_metadata(metadata: Mapping[str, Any], embodiment_tag: str, kind: str, keys: Sequence[str] = ()) -> dict[str, Tensor]:
    """The least and the greatest of all parts of a robot, one after the other; see `ranges`."""
    low, high = (torch.tensor(bound, dtype=torch.float32) for bound in ranges(metadata, embodiment_tag, kind, keys))
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

"""The names of what a checkpoint can be written as. Importing this imports no torch."""

from __future__ import annotations

from rlinf.core.registry import WEIGHT_LAYOUTS


def formats() -> list[str]:
    """All of them."""
    return ["safetensors", "full_weights", "hf", "lerobot", *WEIGHT_LAYOUTS.names()]

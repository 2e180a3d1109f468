"""The import of transformers, which takes longer than the rest of a small model."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from rlinf.core.lazy import without_collection
from rlinf.core.registry import require_modules

_HEAVY: Final = ("transformers.modeling_utils", "transformers.modeling_layers", "transformers.activations")
"""What the modules of its models import, and nearly all that they import takes."""


def import_transformers(*others: str, place: str, extra: str) -> None:
    """Imports what all its models need `without_collection`, so that building one takes 5.0 CPU-s in place of 5.6, behind torch.

    Args:
        others: packages that must be installed, too.
        place: who needs it.
        extra: what would install all of them.

    Raises:
        MissingExtra: one of them is not installed.
    """
    require_modules("transformers", *others, place=place, extra=extra)
    with without_collection():
        for name in _HEAVY:
            import_module(name)

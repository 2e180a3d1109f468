"""torch, imported when something is first computed: the driver of a run names the classes of its workers, and computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.core.lazy import lazy_module

if TYPE_CHECKING:
    import torch as torch
else:
    torch = lazy_module("torch")

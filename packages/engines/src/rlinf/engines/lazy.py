"""torch, imported when something is first computed: a weight sync is read as a configuration, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.core.lazy import lazy_module

if TYPE_CHECKING:
    import torch as torch
else:
    torch = lazy_module("torch")

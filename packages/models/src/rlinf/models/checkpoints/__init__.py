"""Policies on disk: our own folder, and those of Hugging Face, LeRobot and RLinf. Nothing is unpickled but tensors."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

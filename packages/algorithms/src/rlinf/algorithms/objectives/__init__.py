"""Losses of off-policy and offline learning, as functions of Q-values and log-probabilities."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

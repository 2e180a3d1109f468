"""Sampling and scoring of flow policies, one for all: deterministic, by a stochastic equation, or with learned noise."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

"""What watches over a run: that rollout and trainer agree, that weights are the same, that numbers are finite."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

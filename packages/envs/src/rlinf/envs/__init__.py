"""Robot simulators, tools and tasks as environments: one contract, that of Gymnasium's `VectorEnv`."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

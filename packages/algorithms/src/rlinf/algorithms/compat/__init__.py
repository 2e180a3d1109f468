"""What exists for users of RLinf, verl and TRL: their words for ours, and RLinf's calls of losses and advantages by name.

Ours has two ways to a loss or an advantage: its function, and the frozen dataclass that the registry builds by name.
"""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

"""The mathematics of RL post-training: pure functions on tensors, and the same by name behind core's registry.

Advantages, losses and log-probabilities are here. Off-policy learning is in `rlinf.algorithms.objectives`, scoring of
completions in `rlinf.algorithms.rewards`.
"""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

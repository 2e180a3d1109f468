"""The formulas of the package once more, slow and obviously right, on Python's own floats: what its properties compare with.

A function here takes what `tensor.tolist()` gives, and returns the same; a loss returns its total, its weight and the means of its
metrics. It is written from the paper's equation, number by number, and imports nothing of the package.
"""

# ruff: noqa: F403
from reference.corrections import *
from reference.critics import *
from reference.discrete import *
from reference.groups import *
from reference.imitation import *
from reference.logits import *
from reference.losses import *
from reference.offline import *
from reference.policy import *
from reference.returns import *
from reference.rewards import *
from reference.terms import *

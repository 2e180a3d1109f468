"""Models that say how good something is: a text, an answer to a question about an image, a frame of a task."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

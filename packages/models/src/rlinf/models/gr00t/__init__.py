"""GR00T-N1.5: a vision-language model, and a diffusion transformer that denoises chunks of actions."""

from rlinf.core.lazy import lazy_exports as _lazy_exports

__getattr__, __dir__ = _lazy_exports(__name__, __file__)

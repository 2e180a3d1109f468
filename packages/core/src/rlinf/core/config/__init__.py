"""Typed reading of configurations, and where each value came from."""

from rlinf.core.config.provenance import Provenance, explain
from rlinf.core.config.reading import read

__all__ = ["Provenance", "explain", "read"]

"""Typed reading of configurations, the ranges of their numbers, and where each value came from."""

from rlinf.core.config.provenance import Provenance, explain
from rlinf.core.config.ranges import expect_at_least, expect_range, expect_seconds
from rlinf.core.config.reading import read

__all__ = ["Provenance", "expect_at_least", "expect_range", "expect_seconds", "explain", "read"]

"""Refuses an environment in which a part is not alone with core; usage: python strangers.py <part>."""

import importlib.util
import sys

PARTS = ("scheduler", "algorithms", "models", "envs", "engines", "runners")

found = [part for part in PARTS if part != sys.argv[1] and importlib.util.find_spec(f"rlinf.{part}")]
sys.exit(f"rlinf-{sys.argv[1]} must be tested without {found}" if found else 0)

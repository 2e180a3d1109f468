"""Needs an environment with SGLang: `nox -s engines-sglang`. The toy model is that of the tests beside."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "generation"))
collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_sglang_*.py"]

"""Needs an environment with vLLM: `nox -s engines-vllm`. The toy model is that of the tests beside."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "generation"))
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_vllm_*.py"]

"""Needs an environment with vLLM: `nox -s engines-vllm`. The toy model is that of the tests beside."""

import importlib.util
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "generation"))
torch.set_num_threads(1)
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_vllm_*.py"]

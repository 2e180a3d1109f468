"""The tests share toys, and processes share them too, so they are modules beside them; two ranks are started once for all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

sys.path.insert(0, str(Path(__file__).parent))

SHARED = ("test_sharding.py", "test_ranks.py", "test_masters.py", "test_resizing.py")
"""The files that look at what two ranks have left."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes share the tests by file, and one of them takes all that need two ranks, which are then started once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return "two" if path.endswith(SHARED) else path

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def device() -> torch.device:
    """A GPU; or with RLINF_TEST_DEVICE=cpu, which tries such tests without one, the CPU."""
    import torch

    named = os.environ.get("RLINF_TEST_DEVICE", "cuda")
    if named == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(named)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left of all cases, each below the folder of its name."""
    from engines_ranks import ON_TWO, launch

    return launch(tmp_path_factory.mktemp("two"), 2, [*ON_TWO, "chain", "sent", "masters", "toys", "resizing"])

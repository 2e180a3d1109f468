"""Ranks are started once for all tests, and share the toy with them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left of all cases, each below the folder of its name."""
    from megatron_ranks import CHAINS, ON_TWO, launch

    return launch(tmp_path_factory.mktemp("two"), 2, [*CHAINS, *ON_TWO])

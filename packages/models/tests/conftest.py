"""What the tests of all models share; functions that tests import are in `draws`."""

import sys
from pathlib import Path

import pytest
import torch

# Tests are imported without their folder on the path, and some share functions that lie beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small networks are an order of magnitude slower when threads compete for the cores of a busy machine."""
    torch.set_num_threads(1)

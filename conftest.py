"""What holds for the tests of every part."""

import random
import sys
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# A busy machine may be slow at any example: no test fails for its time. Each run has the same examples, so that none fails by
# chance; `pytest --hypothesis-profile=explore` draws others.
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("any machine"), derandomize=False)
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Small tensors are an order of magnitude slower when threads compete for the cores of a busy machine.

    Not where this file is read: whoever only hands out tests would import torch.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        _compare_without_dtensor(torch)


class _HasDTensor:
    """Whether a tensor may be a DTensor, which nothing is in a process that has not imported it."""

    def __bool__(self) -> bool:
        return "torch.distributed.tensor" in sys.modules


def _compare_without_dtensor(torch: ModuleType) -> None:
    """`torch.testing.assert_close` would import DTensor at its first call, and SymPy with it: a second in each process."""
    torch.testing._comparison._HAS_DTENSOR = torch.distributed.is_available() and _HasDTensor()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that seeds nothing draws the same numbers whichever tests were run before it in its process."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)
        # `torch.manual_seed` takes a millisecond where this has not begun, as it keeps the stack until then.
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)

"""How several processes share these tests."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByPart(LoadScopeScheduling):
    """The tests of one part go to one process, which makes its environment once.

    Groups (`--dist loadgroup`) would not do: pytest 9.2 does not show them to pytest-xdist 3.8.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("[")[2] or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPart:
    return ByPart(config, log)

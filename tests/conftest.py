"""Options and deadlines of the tests of the whole house."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--approve", action="store_true", help="write the public names that are found as the approved ones")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that takes minutes on an idle machine may take many on a busy one, unless it says how many."""
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))

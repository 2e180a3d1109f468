"""Options of the tests of the whole house."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--approve", action="store_true", help="write the public names that are found as the approved ones")

"""Tests share cases, modules beside them."""

import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A background job ignores Ctrl-C, and the programs that it starts do, too; here some are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a text that is no Unicode left in a log is escaped: between the processes of pytest-xdist, only Unicode passes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report

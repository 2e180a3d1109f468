"""What all test sessions share."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

# The first example imports what is imported late, which takes longer than the others on a busy machine.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Python looks for no garbage while tests are collected, nor later at what that has left: imports, which stay.

    They are some hundred thousand objects, at which Python would look again and again: a CPU-s in each process of a session.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()

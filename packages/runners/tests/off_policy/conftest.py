"""What tests of off-policy runs share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rlinf.core.registry import ENV_WRAPPERS


@pytest.fixture
def intervening() -> Any:
    @dataclasses.dataclass(frozen=True)
    class Intervenes:
        training_only = True
        intervenes = True

        def wrap(self, env: Any, name: str) -> Any:
            return env

    ENV_WRAPPERS.register("toy_interventions", Intervenes)
    yield [{"type": "toy_interventions"}]
    ENV_WRAPPERS._claims.pop("toy_interventions", None)

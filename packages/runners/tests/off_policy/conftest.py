"""What tests of off-policy runs share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rlinf.core.registry import ENV_WRAPPERS


@pytest.fixture
def off_policy_data(toy_data: dict[str, Any]) -> dict[str, Any]:
    """The toys, off-policy: 4 environments of 6 decisions."""
    toy_data["runner"]["task_type"] = "embodied_off_policy"
    toy_data["actor"] = {
        "training_backend": "toy_sees",
        "model": {"model_type": "toy_q"},
        "weight_syncer": {"type": "toy_sync"},
        "global_batch_size": 12,
    }
    toy_data["algorithm"] = {"loss_type": "toy_objective", "replay_buffer": {"capacity": 60}}
    return toy_data


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

"""The recipe of DAgger, by its own commands: it teaches what its demonstrations alone do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

RECIPE = ("--config-name", "tabletop_dagger")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dagger_teaches_more_than_its_demonstrations(app: Any, seed: int) -> None:
    code, said = app.here("collect.py", *RECIPE, "--episodes", "24", "--out", str(app.logs / "demonstrations"))
    assert code == 0, said

    def success(name: str, *overrides: str) -> float:
        chosen = (f"runner.seed={seed}", f"runner.experiment_name={name}", f"runner.logger.log_path={app.logs}")
        data = f"data.path={app.logs / 'demonstrations'}"
        code, said = app.here("sft.py", *RECIPE, "cluster.backend=local", data, *chosen, *overrides)
        assert code == 0, said
        return float(json.loads((app.logs / name / "summary.json").read_text())["eval/success_once"])

    assert success("dagger") >= 0.95
    assert success("control", "~dagger") <= 0.8

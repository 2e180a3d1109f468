"""A suite is of one policy: rows of different weights under one name would lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.commands import eval_app

CONFIG = Path(__file__).parents[1] / "apps/embodied/config"


def test_entries_of_different_weights_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.pt").touch()
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"one: {{runner.ckpt_path: {tmp_path}/a.pt}}\ntwo: {{runner.ckpt_path: {tmp_path}/b.pt}}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^two: runner\.ckpt_path: a suite is of one policy: 'one' evaluates .*a\.pt, found .*b\.pt"
    ):
        eval_app(["--config-name", "cartpole_ppo", "--suite", str(suite)], config_dir=CONFIG, description="")

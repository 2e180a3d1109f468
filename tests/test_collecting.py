"""What `apps/embodied/collect.py` leaves behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rlinf.envs.offline import NumpyEpisodes
from rlinf.runners.entry import INTERRUPTED

APP = Path(__file__).parents[1] / "apps/embodied/collect.py"


def test_an_interrupted_collection_keeps_what_has_ended_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("collect", APP)
    assert spec
    assert spec.loader
    app: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    record, folder = app.record_expert, tmp_path / "demos"

    def interrupted(*args: Any, **settings: Any) -> Any:
        ended: list[Any] = []

        def report(result: Any) -> None:
            ended.append(result)
            if len(ended) == 3:
                raise KeyboardInterrupt

        return record(*args, **settings, report=report)

    monkeypatch.setattr(app, "record_expert", interrupted)
    asked = ["--config-name", "tabletop_flow_sft", "--format", "numpy", "env.eval.total_num_envs=2", "--out"]
    code = app.main([*asked, str(folder)])
    kept = len(NumpyEpisodes(path=str(folder)).open())
    assert (code, kept >= 3) == (INTERRUPTED, True)
    assert f"interrupted: the {kept} episodes that had ended are in {folder}" in capsys.readouterr().out

    def interrupted_at_once(*args: Any, **settings: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "record_expert", interrupted_at_once)
    assert app.main([*asked, str(tmp_path / "none")]) == INTERRUPTED
    assert capsys.readouterr().out == "interrupted: no episode had ended\n"

from pathlib import Path
from typing import Any

import pytest

from rlinf.runners.config.paths import absolute_paths, moved_paths, path_values


def test_paths_that_are_there_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "gymnasium").mkdir()
    config: dict[str, Any] = {
        "runner": {"logger": {"log_path": "logs"}, "ckpt_path": None, "resume_dir": "/there"},
        "env": {"train": {"env_type": "gymnasium", "init_params": {"asset_root": "models"}}},
        "actor": {"model": {"model_path": "models", "tokenizer_path": "some-hub/name"}, "files": ["models", "none", 3]},
    }
    assert absolute_paths(config) == {
        "runner": {"logger": {"log_path": str(tmp_path / "logs")}, "ckpt_path": None, "resume_dir": "/there"},
        "env": {"train": {"env_type": "gymnasium", "init_params": {"asset_root": str(tmp_path / "models")}}},
        "actor": {
            "model": {"model_path": str(tmp_path / "models"), "tokenizer_path": "some-hub/name"},
            "files": [str(tmp_path / "models"), "none", 3],
        },
    }
    assert config["actor"]["model"]["model_path"] == "models", "the user's own mapping stays as it is"


def test_what_moved_with_the_logs_is_found_there(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (new / "warm/model").mkdir(parents=True)
    elsewhere = tmp_path / "data.jsonl"
    config = {
        "runner": {"logger": {"log_path": str(old)}},
        "reference": {"ckpt_path": str(old / "warm/model")},
        "actor": {"model": {"model_path": str(old / "gone")}},
        "data": {"path": str(elsewhere)},
    }
    found = moved_paths(config, new / "run")
    assert found["reference"] == {"ckpt_path": str(new / "warm/model")}
    assert found["actor"] == config["actor"]
    assert found["data"] == config["data"]
    (old / "warm/model").mkdir(parents=True)
    assert moved_paths(config, new / "run")["reference"] == config["reference"], "it is still there"


def test_all_paths_of_a_configuration_are_known() -> None:
    config = {"a": {"path": "x", "ckpt_path": "y", "pathology": "no", "dir": 3}, "roots": ["z"]}
    assert sorted(map(str, path_values(config))) == ["x", "y", "z"]

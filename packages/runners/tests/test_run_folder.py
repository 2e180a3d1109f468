import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.checkpoints.run_folder import open_run_folder
from rlinf.runners.embodied.rules import read_embodied


def test_an_earlier_run_is_kept(toy_data: dict[str, Any], tmp_path: Path) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    cfg = read_embodied(toy_data)
    for text in ("first", "second"):
        open_run_folder(cfg).summary.write_text(text)
    assert (tmp_path / "toy.1/summary.json").read_text() == "first"
    assert (tmp_path / "toy/summary.json").read_text() == "second"


def test_a_run_that_is_refused_gives_the_name_back(toy_data: dict[str, Any], tmp_path: Path) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    cfg = read_embodied(toy_data)
    open_run_folder(cfg).summary.write_text("first")
    refused = open_run_folder(cfg)
    (refused.path / "worker_logs").mkdir()
    refused.discard()
    assert [each.name for each in tmp_path.glob("toy*")] == ["toy"]
    assert refused.summary.read_text() == "first"
    begun = open_run_folder(cfg)
    begun.metrics.touch()
    begun.discard()
    assert sorted(each.name for each in tmp_path.glob("toy*")) == ["toy", "toy.1"]


def test_a_resumed_run_goes_on_in_its_folder(toy_data: dict[str, Any], tmp_path: Path) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    folder = open_run_folder(read_embodied(toy_data))
    (folder.checkpoints / "global_step_1").mkdir(parents=True)
    toy_data["runner"]["resume_dir"] = str(folder.checkpoints / "global_step_1")
    assert open_run_folder(read_embodied(toy_data)).checkpoints.exists()


def test_a_folder_that_can_not_be_written_is_refused(toy_data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path / "file")}
    with pytest.raises(ConfigError, match=r"runner\.logger\.log_path: can't write to .*file/toy"):
        open_run_folder(read_embodied(toy_data))


def test_a_folder_in_use_by_a_living_run_is_refused(toy_data: dict[str, Any], tmp_path: Path) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    with (tmp_path / ".toy.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"runner\.experiment_name: another run is writing to"):
            open_run_folder(read_embodied(toy_data))


def test_a_file_system_without_locks_is_written_to(
    toy_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    assert open_run_folder(read_embodied(toy_data)).path.is_dir()

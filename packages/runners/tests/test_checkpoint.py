import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import CheckpointError
from rlinf.runners.checkpoints.checkpoint import read_checkpoint, write_checkpoint


def write(folder: Path, content: bytes = b"weights", step: int = 1) -> None:
    def actor(part: Path) -> None:
        (part / "model.safetensors").write_bytes(content)

    write_checkpoint(folder, actor, config={"a": 1}, state={"step": step})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "global_step_1")
    checkpoint = read_checkpoint(tmp_path / "global_step_1")
    assert checkpoint.model_file.read_bytes() == b"weights"
    assert checkpoint.config == {"a": 1}
    assert checkpoint.state == {"step": 1}


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "global_step_1")
    (tmp_path / "global_step_1/actor/model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: differs from the manifest"):
        read_checkpoint(tmp_path / "global_step_1")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "global_step_1")
    (tmp_path / "global_step_1/state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json: listed in the manifest but missing"):
        read_checkpoint(tmp_path / "global_step_1")


def test_another_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "global_step_1")
    (tmp_path / "global_step_1/manifest.json").write_text(json.dumps({"format": 99, "files": {}}))
    with pytest.raises(CheckpointError, match="format 99, this version reads 1"):
        read_checkpoint(tmp_path / "global_step_1")


def test_a_failure_while_writing_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_1"
    write(folder)

    def failing(part: Path) -> None:
        (part / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(CheckpointError, match=r"global_step_\d+: can't be written \(disk full; .*before this one are whole"):
        write_checkpoint(folder, failing, config={}, state={})
    assert read_checkpoint(folder).model_file.read_bytes() == b"weights"
    assert list(folder.parent.iterdir()) == [folder], "what was written in part is gone, as it would fill the disk"


def test_a_disk_without_room_for_the_folder_of_the_first_one_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(CheckpointError, match=r"can't be written \(No space left on device; .* free\)\. Make room\. The"):
        write_checkpoint(tmp_path / "checkpoints/global_step_1", lambda part: None, config={}, state={})


def test_everything_is_on_the_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the rename must not leave a checkpoint whose files or folders are empty."""
    events: list[tuple[str, int]] = []
    fsync, rename = os.fsync, Path.rename

    def synced(fd: int) -> None:
        events.append(("sync", os.fstat(fd).st_ino))
        fsync(fd)

    def renamed(self: Path, target: Path) -> Path:
        events.append(("rename", self.stat().st_ino))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)

    def actor(part: Path) -> None:
        (part / "shards").mkdir()
        (part / "shards/0.safetensors").write_bytes(b"weights")

    folder = tmp_path / "global_step_1"
    write_checkpoint(folder, actor, config={}, state={})
    made = events.index(("rename", folder.stat().st_ino))
    before = {inode for _, inode in events[:made]}
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_ino in before, f"{path} was not synced before the rename"
    assert ("sync", tmp_path.stat().st_ino) in events[made:], "the rename itself"


def test_a_run_folder_stands_for_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (9, 10):
        write(tmp_path / "checkpoints" / f"global_step_{step}", step=step)
    (tmp_path / "checkpoints/.global_step_11.partial").mkdir()
    assert read_checkpoint(tmp_path).state["step"] == 10


def test_a_folder_without_checkpoint_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Name a global_step_N folder"):
        read_checkpoint(tmp_path)

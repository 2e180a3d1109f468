import errno
import json
from pathlib import Path

import pytest

from rlinf.core.checkpoints.disk import unwritten
from rlinf.core.checkpoints.weight_files import CANDIDATES, expect_whole, find_weights, has_weights, newest_checkpoint, read_shards
from rlinf.core.errors import CheckpointError


def put(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    return file


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("below", ["", "actor"])
def test_a_file_and_its_folder(tmp_path: Path, name: str, below: str) -> None:
    file = put(tmp_path / below / name)
    assert find_weights(tmp_path) == find_weights(str(file)) == file


def test_a_run_means_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 10, 2):
        put(tmp_path / "checkpoints" / f"global_step_{step}" / "actor" / "model.safetensors")
    put(tmp_path / "checkpoints" / ".global_step_11.partial" / "actor" / "model.safetensors")
    newest = tmp_path / "checkpoints" / "global_step_10"
    for given in (tmp_path, tmp_path / "checkpoints", newest):
        assert newest_checkpoint(given) == newest
        assert has_weights(given)
        assert find_weights(given) == newest / "actor" / "model.safetensors"
    assert newest_checkpoint(newest.with_name("global_step_9")) == newest.with_name("global_step_9")
    best = newest.with_name("best")
    best.symlink_to("global_step_9")
    assert newest_checkpoint(best) == best
    assert newest_checkpoint(tmp_path / "nowhere") is newest_checkpoint(newest / "actor") is None


def test_nothing_there(tmp_path: Path) -> None:
    put(tmp_path / "notes.txt")
    for given, content in ((tmp_path, r", which has notes\.txt"), (tmp_path / "notes.txt", ""), (tmp_path / "nowhere", "")):
        with pytest.raises(
            CheckpointError, match=rf"no weights there{content}\. Name a file \(\.safetensors, .*model\.safetensors"
        ):
            find_weights(given)
    with pytest.raises(CheckpointError, match=r"^runner\.ckpt_path: no weights at '.*nowhere'"):
        find_weights(tmp_path / "nowhere", place="runner.ckpt_path")


def test_shards(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    put(tmp_path / "one.safetensors")
    with pytest.raises(CheckpointError, match=r"^actor\.model: expected the shard 'two\.safetensors'"):
        read_shards(index, place="actor.model")
    put(tmp_path / "two.safetensors")
    assert read_shards(index) == {"a": tmp_path / "one.safetensors", "b": tmp_path / "two.safetensors"}
    for content in ("{", "[]", json.dumps({"weight_map": [1]}), json.dumps({"weight_map": {"a": 1}})):
        index.write_text(content)
        with pytest.raises(CheckpointError, match="can't be read"):
            read_shards(index)
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(CheckpointError, match="expected the shard"):
        read_shards(index)


def test_a_file_that_was_cut_is_found_by_its_header(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    file, whole = tmp_path / "model.safetensors", len(header).to_bytes(8, "little") + header + bytes(12)
    file.write_bytes(whole)
    expect_whole(file)
    (tmp_path / "a.index.json").write_text(json.dumps({"weight_map": {"w": file.name}}))
    file.write_bytes(whole[:-5])
    for named in (file, tmp_path / "a.index.json"):
        with pytest.raises(CheckpointError, match=rf"^runner\.ckpt_path: expected {len(whole)} bytes in '.*', found"):
            expect_whole(named, place="runner.ckpt_path")
    for other in (b"", whole[:20], b"PK\3\4 something else", (2).to_bytes(8, "little") + b"[]"):
        file.write_bytes(other)
        with pytest.raises(CheckpointError, match="is no safetensors file"):
            expect_whole(file)
    (tmp_path / "full_weights.pt").write_bytes(b"?")
    expect_whole(tmp_path / "full_weights.pt")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, "full"), "Make room. The checkpoints before this one are whole."),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "Make room. The checkpoints before this one are whole."),
        (PermissionError(errno.EACCES, "Permission denied"), "The checkpoints before this one are whole."),
    ],
)
def test_room_is_asked_for_where_the_disk_is_full(error: Exception, remedy: str) -> None:
    assert unwritten(Path("run/a"), "can't be written", error).remedy == remedy

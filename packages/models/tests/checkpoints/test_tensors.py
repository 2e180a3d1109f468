import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rlinf.core.errors import CheckpointError
from rlinf.models.checkpoints import fit, read_tensors, write_tensors
from rlinf.models.checkpoints.atomic import fresh_file, fresh_folder

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


@st.composite
def states(draw):
    """Tensors of any type, some of them under two names, some views of one storage."""
    found = {}
    for i in range(draw(st.integers(1, 5))):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(i)).to(draw(st.sampled_from(DTYPES)))
        form = draw(st.sampled_from(["plain", "tied", "turned", "halves"]))
        found[f"layer.{i}.weight"] = tensor.movedim(0, -1) if form == "turned" and shape else tensor
        if form == "tied":
            found[f"alias.{i}"] = tensor
        if form == "halves" and shape:
            found[f"half.{i}"] = tensor[: shape[0] // 2]
    return found


@given(state=states(), shard_bytes=st.sampled_from([1, 64, 2**30]))
def test_what_is_written_is_read(state, shard_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    write_tensors(state, folder, shard_bytes=shard_bytes)
    found = read_tensors(folder)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    for name in state:
        if name.startswith("alias.") and state[name].numel():
            assert found[name].data_ptr() == found[f"layer.{name.removeprefix('alias.')}.weight"].data_ptr()


def test_shards_are_those_of_hugging_face(tmp_path):
    state = {name: torch.full((4,), float(i)) for i, name in enumerate("abc")}
    write_tensors(state, tmp_path, shard_bytes=32)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index["weight_map"] == {"a": first, "b": first, "c": second}
    assert index["metadata"]["total_size"] == 48


def test_a_missing_shard_or_tensor(tmp_path):
    write_tensors({name: torch.ones(4) for name in "abc"}, tmp_path, shard_bytes=16)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the shard 'model-00002-of-00003\.safetensors'"):
        read_tensors(tmp_path)
    save_file({"z": torch.ones(1)}, tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"1 tensors are in no shard, such as \['b'\]"):
        read_tensors(tmp_path)


def test_an_index_stays_in_its_folder(tmp_path):
    (tmp_path / "in").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "outside.safetensors")
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(CheckpointError, match="expected the shard"):
        read_tensors(tmp_path / "in")


def test_damaged_files(tmp_path):
    with pytest.raises(CheckpointError, match="no weights there"):
        read_tensors(tmp_path)
    write_tensors({"a": torch.ones(64)}, tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for part in (whole[:-1], whole[:20], b"", b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(part)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
            read_tensors(tmp_path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_nothing_is_unpickled_but_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"module.a": torch.ones(2), "module.b": torch.zeros(1, dtype=torch.bfloat16)}
    torch.save(state, tmp_path / "full_weights.pt")
    assert read_tensors(tmp_path).keys() == state.keys()
    torch.save({"a": Evil()}, tmp_path / "full_weights.pt")
    with pytest.raises(CheckpointError, match=r"can't be read as tensors alone \(it holds an object of (posix|nt)\.mkdir\)"):
        read_tensors(tmp_path)
    assert not (tmp_path / "evil").exists()
    # As pickles these are a KeyError, an IndexError, an UnpicklingError and an EOFError.
    for nonsense in (b"hello", b"abc\n", b"version https://git-lfs.github.com/spec/v1", b""):
        (tmp_path / "full_weights.pt").write_bytes(nonsense)
        with pytest.raises(CheckpointError, match=r"alone \(it was cut, or torch\.save did not write it\)"):
            read_tensors(tmp_path)
    torch.save({"model": state, "epoch": 3}, tmp_path / "full_weights.pt")
    with pytest.raises(CheckpointError, match=r"expected tensors by name, found \['epoch', 'model'\]"):
        read_tensors(tmp_path)
    (tmp_path / "full_weights.pt").write_bytes(b"PK nonsense")
    with pytest.raises(CheckpointError, match="can't be read as tensors alone"):
        read_tensors(tmp_path)


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "deep" / "step_1"

    def write(text, *, overwrite=False, fail=False):
        with fresh_folder(folder, overwrite=overwrite) as made:
            (made / "config.json").write_text(text)
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("one", fail=True)
    assert list(folder.parent.iterdir()) == []
    write("one")
    with pytest.raises(CheckpointError, match="is there already"):
        write("two")
    with pytest.raises(KeyboardInterrupt):
        write("two", overwrite=True, fail=True)
    assert (folder / "config.json").read_text() == "one"
    write("two", overwrite=True)
    assert (folder / "config.json").read_text() == "two"
    assert list(folder.parent.iterdir()) == [folder]
    (folder / "config.json").rename(folder / "thesis.txt")
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        write("three", overwrite=True)
    assert (folder / "thesis.txt").exists()


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    def write():
        with fresh_file(tmp_path / "a.pt") as made:
            made.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


EXPECTED = {"layers.0.weight": torch.zeros(2, 3), "layers.0.bias": torch.zeros(2), "count": torch.zeros((), dtype=torch.int64)}


def test_what_does_not_fit_is_named():
    found = {"layers.0.weight": torch.zeros(3, 2), "layer.0.bias": torch.zeros(2), "count": torch.zeros(())}
    with pytest.raises(CheckpointError) as caught:
        fit(EXPECTED, found, place="w.pt")
    text = str(caught.value)
    for part in (
        "w.pt: made for another policy",
        "1 missing: layers.0.bias [2] (nearest: layer.0.bias)",
        "1 unused: layer.0.bias [2] (nearest: layers.0.bias)",
        "2 different: count: expected [] int64, found [] float32, layers.0.weight: expected [2, 3] float32, found [3, 2] float32",
    ):
        assert part in text


def test_what_may_be_missing_or_left_over_is_reported():
    found = {
        "layers.0.weight": torch.ones(2, 3, dtype=torch.bfloat16),
        "count": torch.ones((), dtype=torch.int32),
        "lm_head.x": torch.ones(1),
    }
    fitted = fit(EXPECTED, found, place="", allow_missing=["*.bias"], allow_unused=["lm_head.*"])
    assert fitted.missing == ("layers.0.bias",)
    assert fitted.unused == ("lm_head.x",)
    assert sorted(fitted.tensors) == ["count", "layers.0.weight"]


@pytest.mark.parametrize("prefix", ["", "module.", "_fsdp_wrapped_module.", "model.", "module.model.", "_orig_mod.module."])
def test_wrappers_are_removed(prefix):
    found = {prefix + name.replace("layers.0.", "layers.0._fsdp_wrapped_module."): tensor for name, tensor in EXPECTED.items()}
    assert fit(EXPECTED, found, place="").tensors.keys() == EXPECTED.keys()


def test_a_tied_tensor_may_be_there_once_but_not_twice_and_different():
    weight = torch.zeros(2)
    expected = {"embed": weight, "head": weight, "other": torch.zeros(1)}
    found = {"embed": torch.ones(2), "other": torch.ones(1)}
    assert fit(expected, found, place="").tensors["head"].tolist() == [1.0, 1.0]
    fit(expected, {**found, "head": torch.ones(2)}, place="")
    with pytest.raises(CheckpointError, match="embed and head differ, which are one tensor here"):
        fit(expected, {**found, "head": torch.zeros(2)}, place="")


def test_the_older_folder_comes_back_if_the_new_one_can_not_take_its_place(tmp_path, monkeypatch):
    folder = tmp_path / "step_1"

    def write(text, *, overwrite=False):
        with fresh_folder(folder, overwrite=overwrite) as made:
            (made / "config.json").write_text(text)

    def fail(source, target):
        raise OSError("no")

    write("one")
    monkeypatch.setattr("rlinf.models.checkpoints.atomic.rename_on_disk", fail)
    with pytest.raises(OSError, match="no"):
        write("two", overwrite=True)
    assert (folder / "config.json").read_text() == "one"
    assert list(tmp_path.iterdir()) == [folder]

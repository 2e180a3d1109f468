"""`rlinf convert` over parts: language models to files of Megatron and back, by the installed command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlinf.core.commands import main
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.checkpoints import load_policy, read_tensors
from rlinf.models.conversion.command import convert
from rlinf.models.registry import build_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = build_policy("causal_lm", {"preset": "tiny", "architecture": "llama"}, None, seed=3, place="model")
    model.save_network(tmp_path / "hf")  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    return tmp_path / "hf"


def test_a_language_model_becomes_megatrons_and_comes_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_tensors(folder)
    assert main(["convert", str(folder), str(tmp_path / "m"), "--to", "megatron", "tensor_model_parallel_size=2"]) == 0
    assert f"{len(before)} tensors as megatron" in capsys.readouterr().out
    # Divided otherwise, and then back by way of the weights alone.
    assert main(["convert", str(tmp_path / "m"), str(tmp_path / "n"), "--to", "megatron", "transformer_impl=local"]) == 0
    assert main(["convert", str(tmp_path / "n"), str(tmp_path / "x.pt"), "--to", "full_weights"]) == 0
    assert main(["convert", str(tmp_path / "x.pt"), str(tmp_path / "back"), "--to", "hf", "--like", str(folder)]) == 0
    after = read_tensors(tmp_path / "back")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_policy_made_of_a_public_folder_is_read_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "hf", "ours", "--to", "safetensors"]) == 0
    assert main(["convert", "hf", "m", "--to", "megatron"]) == 0
    assert main(["convert", "m", "of_m", "--to", "safetensors", "--like", "hf"]) == 0
    assert main(["convert", "m", "alone", "--to", "safetensors"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = read_tensors(folder)
    for made in ("ours", "of_m"):
        after = load_policy(tmp_path / made).network.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    # Nothing that stays says what the weights of Megatron's are of.
    with pytest.raises(CheckpointError, match="Pass model_type"):
        load_policy(tmp_path / "alone")


def test_weights_alone_become_public_in_either_of_their_files(folder: Path, tmp_path: Path) -> None:
    before, found = read_tensors(folder), str(folder)
    assert main(["convert", found, str(tmp_path / "x.pt"), "--to", "full_weights"]) == 0
    assert main(["convert", str(tmp_path / "x.pt"), str(tmp_path / "alone"), "--to", "safetensors"]) == 0
    assert main(["convert", str(tmp_path / "alone"), str(tmp_path / "back"), "--to", "hf", "--like", found]) == 0
    after = read_tensors(tmp_path / "back")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_sizes_that_do_not_fit_are_refused_and_nothing_is_left(folder: Path, tmp_path: Path) -> None:
    for params, message in (("tensor_model_parallel_size=3", "can't be divided over 3 ranks"), ("tensor_size=3", "unknown key")):
        with pytest.raises(ConfigError, match=message):
            convert([str(folder), str(tmp_path / "never"), "--to", "megatron", params])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]

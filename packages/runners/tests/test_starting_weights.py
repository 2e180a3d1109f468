from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlinf.core.errors import CheckpointError
from rlinf.runners.starting_weights import find_weights, read_weights

TENSORS = {"actor.weight": torch.arange(6.0).reshape(2, 3), "critic.bias": torch.ones(2, dtype=torch.bfloat16)}


@pytest.mark.parametrize("name", ["model.safetensors", "full_weights.pt", "actor/model_state_dict/full_weights.pt"])
def test_a_file_or_its_folder(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".pt":
        torch.save(TENSORS, file)
    else:
        save_file(TENSORS, file)
    for given in (file, tmp_path):
        weights = read_weights(find_weights(str(given)))
        assert weights.version == 0
        assert all(torch.equal(weights.tensors[key], tensor) for key, tensor in TENSORS.items())


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"runner\.ckpt_path: no weights at .*Name a \.safetensors or \.pt file"):
        find_weights(str(tmp_path))


class Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_what_is_no_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, write in (
        ("cut.safetensors", lambda path: path.write_bytes(b"12345678{}")),
        ("evil.pt", lambda path: torch.save({"a": Evil()}, path)),
        ("number.pt", lambda path: torch.save(3, path)),
    ):
        write(tmp_path / name)
        with pytest.raises(CheckpointError, match=r"runner\.ckpt_path"):
            read_weights(tmp_path / name)
    assert "unpickled" not in capsys.readouterr().out

"""What a run starts from must bring the statistics by which its policy acts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import MODELS
from rlinf.runners.config.checks import check_evaluation, check_run
from rlinf.runners.config.statistics import lacking_statistics
from rlinf.runners.embodied.rules import check_spec, read_embodied


@dataclass(frozen=True)
class Normalises:
    """A model of folders that have statistics of some actions, or none, and are of its type."""

    model_path: str | None = None
    width: int = 4
    traits: ClassVar = PolicyTraits(language=False)

    def check(self, place: str) -> None:
        file = Path(str(self.model_path)) / "config.json"
        named = json.loads(file.read_text()).get("type", "toy") if file.is_file() else "toy"
        if named != "toy":
            raise ConfigError(f"{place}.model_path", f"'{self.model_path}' is of a '{named}'")

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        if self.model_path is not None and (Path(self.model_path) / "no tokenizer").is_file():
            raise CheckpointError(self.model_path, "there is no tokenizer")

    def check_statistics(self, place: str, actions: int | None = None) -> None:
        if self.model_path is None:
            return
        file = Path(self.model_path) / "statistics"
        if not file.is_file():
            raise ConfigError(f"{place}.model_path", f"'{self.model_path}' has no statistics")
        size = int(file.read_text())
        if actions not in (None, size):
            raise ConfigError(f"{place}.model_path", f"statistics of {size} actions, and the environment takes {actions}")


@dataclass(frozen=True)
class OfNoFolder:
    """A model that reads none."""

    traits: ClassVar = PolicyTraits(language=False)


if "toy_of_no_folder" not in MODELS.names():
    MODELS.register("toy_of_no_folder")(OfNoFolder)
if "toy_normalises" not in MODELS.names():
    MODELS.register("toy_normalises")(Normalises)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # a whole file, of no tensor
    (tmp_path / "config.json").write_text(json.dumps({"type": "toy"}))
    return tmp_path


def config(toy_data: dict[str, Any], *, model_path: Path | None = None, **runner: Any) -> Any:
    toy_data["actor"]["model"] = {"model_type": "toy_normalises", "model_path": None if model_path is None else str(model_path)}
    toy_data["runner"] |= runner
    return read_embodied(toy_data)


@pytest.mark.parametrize("key", ["actor.model.model_path", "runner.ckpt_path"])
def test_a_folder_without_statistics_is_refused_by_the_key_that_names_it(toy_data: dict[str, Any], folder: Path, key: str) -> None:
    given: dict[str, Any] = {"model_path": folder} if key.startswith("actor") else {"ckpt_path": str(folder)}
    cfg = config(toy_data, **given)
    for check in (check_run, check_evaluation):
        with pytest.raises(ConfigError, match=f"^{key}: '{folder}' has no statistics"):
            check(cfg)
    (folder / "statistics").write_text("1")
    assert not list(lacking_statistics(cfg, None))
    check_run(cfg)


def test_a_folder_of_another_model_is_refused_by_the_key_that_names_it(toy_data: dict[str, Any], folder: Path) -> None:
    (folder / "statistics").write_text("1")
    cfg = config(toy_data, ckpt_path=str(folder))
    for content, file, told in (("toy", "no tokenizer", "there is no tokenizer"), ("act", "as before", "is of a 'act'")):
        (folder / "config.json").write_text(json.dumps({"type": content}))
        (folder / file).touch()
        for check in (check_run, check_evaluation):
            with pytest.raises(ConfigError, match=rf"^runner\.ckpt_path: '{folder}':? {told}"):
                check(cfg)
        (folder / file).unlink()
    toy_data["actor"]["model"] = {"model_type": "toy_of_no_folder"}
    with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: .* whose folders 'toy_of_no_folder' does not read"):
        check_run(read_embodied(toy_data))


def test_so_is_that_of_a_reference(toy_data: dict[str, Any], folder: Path) -> None:
    toy_data["reference"] = {"source": "path", "ckpt_path": str(folder)}
    with pytest.raises(ConfigError, match=r"^reference\.ckpt_path: '.*' has no statistics"):
        check_run(config(toy_data))


def test_weights_of_ours_have_theirs_among_them(toy_data: dict[str, Any], folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"format": "rlinf-policy"}))
    cfg = config(toy_data, model_path=folder.with_name("nowhere"), ckpt_path=str(folder))
    check_run(cfg)
    # A checkpoint that is evaluated has them, too, whatever the folder that its run began from.
    check_evaluation(config(toy_data, model_path=folder, ckpt_path=None), of_checkpoint=True)


def test_statistics_of_other_actions_are_refused_when_the_environment_is_known(toy_data: dict[str, Any], folder: Path) -> None:
    (folder / "statistics").write_text("7")
    cfg = config(toy_data, model_path=folder)
    check_run(cfg)
    states = ArraySpec(shape=(1,), dtype="float32")
    bound = np.ones(4, np.float32)
    action = ArraySpec(shape=(4,), dtype="float32", low=-bound, high=bound)
    spec = EnvSpec(observation={"states": states}, action=action, max_episode_steps=9)
    with pytest.raises(ConfigError, match="statistics of 7 actions, and the environment takes 4"):
        check_spec(cfg, spec)
    check_spec(cfg, spec, of_checkpoint=True)

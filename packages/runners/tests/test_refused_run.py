"""A run that is refused when its simulators are up leaves nothing behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.registry import Registry
from rlinf.runners import commands
from rlinf.runners.checkpoints.run_folder import RunFolder, open_run_folder
from rlinf.runners.config.composition import Composition
from rlinf.runners.embodied.rules import read_embodied


def test_a_folder_is_discarded_unless_something_was_done(tmp_path: Path) -> None:
    for made in (None, "checkpoints", "metrics.jsonl"):
        folder = RunFolder(tmp_path / str(made))
        (folder.path / "worker_logs").mkdir(parents=True)
        if made is not None:
            (folder.path / made).touch()
        folder.discard()
        assert folder.path.exists() == (made is not None)


def test_a_run_that_its_loop_refuses_gives_the_name_back(
    toy_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that asks for more problems than there are, before any worker is built."""
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    cfg = read_embodied(toy_data)
    open_run_folder(cfg).summary.write_text("first")

    def start(cfg: Any, cluster: Any, folder: RunFolder) -> Any:
        raise ConfigError("data.val_problems", "7 are asked for, and there are 3")

    placement = SimpleNamespace(describe=lambda: "", components=(), get_world_size=lambda name: 1)
    cluster = contextlib.nullcontext(SimpleNamespace(placement=placement))
    monkeypatch.setattr(commands, "check_run", lambda cfg: None)
    monkeypatch.setattr(commands, "CLUSTERS", SimpleNamespace(get=lambda name, place: lambda cluster_cfg: cluster))
    monkeypatch.setattr(Composition, "task_type", SimpleNamespace(read=lambda data: cfg, check=None, start=start))
    with pytest.raises(ConfigError, match=r"data\.val_problems"):
        commands.run_recipe(Composition(name="toy", data=toy_data, provenance={}))
    assert [(each.name, (each / "summary.json").read_text()) for each in tmp_path.glob("toy*")] == [("toy", "first")]


def test_a_placement_that_does_not_fit_is_refused_before_problems_are_read(
    toy_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    cfg = read_embodied(toy_data)

    def cluster(cluster_cfg: Any) -> Any:
        raise ConfigError("cluster.component_placement.actor", "names accelerator 7")

    task_type = SimpleNamespace(read=lambda data: cfg, check=lambda cfg: pytest.fail("read"), start=None)
    monkeypatch.setattr(commands, "check_run", lambda cfg: None)
    monkeypatch.setattr(commands, "CLUSTERS", SimpleNamespace(get=lambda name, place: cluster))
    monkeypatch.setattr(Composition, "task_type", task_type)
    with pytest.raises(ConfigError, match=r"component_placement\.actor"):
        commands.run_recipe(Composition(name="toy", data=toy_data, provenance={}))
    assert not list(tmp_path.iterdir())


def test_a_run_without_the_scheduler_says_what_to_install(
    toy_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_data["runner"]["logger"] = {"log_path": str(tmp_path)}
    monkeypatch.setattr(commands, "check_run", lambda cfg: None)
    monkeypatch.setattr(commands, "CLUSTERS", Registry[Any]("cluster", "rlinf.no_such_group"))
    with pytest.raises(MissingExtra, match=r"^cluster: nothing that is installed starts workers\. Install rlinf-scheduler: "):
        commands.run_recipe(Composition(name="toy", data=toy_data, provenance={}))

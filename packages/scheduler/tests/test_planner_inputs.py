"""What `rlinf plan` is given wrongly is refused before anything is measured for it, with the option or the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from planner_cases import embodied
from planner_traces import trace

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler import Cluster


@pytest.mark.parametrize("option", ["--write", "--trace"])
def test_a_file_that_cannot_be_written_is_refused_before_a_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["plan", "--profile", "none.yaml", option, str(tmp_path / "gone/p.json")]) == ConfigError.exit_code
    assert f"{option}: there is no folder '{tmp_path / 'gone'}'" in capsys.readouterr().err
    assert main(["plan", "--profile", "none.yaml", option, str(tmp_path)]) == ConfigError.exit_code
    assert "is a folder. Name a file." in capsys.readouterr().err


def test_a_folder_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def denied(path: object, mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", denied)  # nothing is forbidden to root, as whom tests may run
    assert main(["plan", "--profile", "none.yaml", "--write", str(tmp_path / "p.json")]) == ConfigError.exit_code
    assert "permission denied" in capsys.readouterr().err


def test_what_if_says_so_of_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = ["what-if", str(trace(tmp_path, 1)), "--set", "env.devices=2", "--trace", str(tmp_path / "gone/p.json")]
    assert main(changed) == ConfigError.exit_code
    assert "--trace: there is no folder" in capsys.readouterr().err


def test_only_traces_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(embodied().write(tmp_path / "profile.json"))
    given = ["--profile", str(trace(tmp_path, 1)), "--profile", profile, "--devices", "2"]
    assert main(["plan", *given]) == ConfigError.exit_code
    assert f"'{profile}' is a profile, beside which 1 more are given; only traces" in capsys.readouterr().err


def test_a_profile_that_is_not_there_is_told_by_the_option_that_named_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--profile", str(tmp_path / "gone.json"), "--devices", "2"]) == ConfigError.exit_code
    error = capsys.readouterr().err
    assert f"ConfigError: --profile: there is no '{tmp_path / 'gone.json'}'. Name what cluster.planner.profile can name" in error


def test_the_table_of_what_was_measured_names_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trace(tmp_path, 1).parent
    assert main(["plan", "--profile", str(folder), "--devices", "2"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(str(folder)))
    assert row.split()[0] == str(folder)


def test_a_pinned_component_is_refused_by_its_own_key(tmp_path: Path) -> None:
    profile = str(embodied().write(tmp_path / "profile.json"))
    section = {
        "backend": "local",
        "virtual_accelerators": {"count": 2},
        "component_placement": "auto",
        "planner": {"profile": profile, "pinned": {"env": "7"}},
    }
    with pytest.raises(PlacementError, match=r"^cluster\.planner\.pinned\.env: '7' names accelerator 7"):
        Cluster(cluster_cfg=section)

"""What `apps/embodied/collect.py` leaves behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, cast

import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.offline import NumpyEpisodes
from rlinf.envs.recording import read_numpy
from rlinf.runners.entry import INTERRUPTED

APP = Path(__file__).parents[1] / "apps/embodied/collect.py"


def collecting() -> Any:
    """The app, loaded anew."""
    spec = importlib.util.spec_from_file_location("collect", APP)
    assert spec
    assert spec.loader
    app: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    return app


def interrupting(app: Any, after: int) -> Any:
    """`record_expert` of the app, which is interrupted after some episodes."""
    record = app.record_expert

    def interrupted(*args: Any, report: Any, **settings: Any) -> Any:
        ended: list[Any] = []

        def counted(result: Any) -> None:
            report(result)
            ended.append(result)
            if len(ended) == after:
                raise KeyboardInterrupt

        return record(*args, **settings, report=counted)

    return interrupted


def collected(folder: Path) -> dict[int, Any]:
    """The actions of each episode in a folder, by its seed."""
    found = [read_numpy(file) for file in sorted(folder.glob("episode_*.npz"))]
    assert len({episode.seed for episode in found}) == len(found), "none is there twice"
    return {cast("int", episode.seed): episode.actions.tolist() for episode in found}


ASKED = ("--config-name", "tabletop_flow_sft", "--format", "numpy", "env.eval.total_num_envs=2", "--noise", "0.3")


@pytest.mark.parametrize("more", [(), ("--only-success", "--speed", "0.4")])
def test_an_interrupted_collection_goes_on_to_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    whole, folder, app = tmp_path / "whole", tmp_path / "demos", collecting()
    assert app.main([*ASKED, *more, "--episodes", "9", "--out", str(whole)]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(app, "record_expert", interrupting(app, 3))
        assert app.main([*ASKED, *more, "--episodes", "6", "--out", str(folder)]) == INTERRUPTED
    before = collected(folder) if folder.exists() else {}
    assert 3 * (not more) <= len(before) < 6
    # With more episodes than were asked for, and other numbers of environments.
    again = [*ASKED, *more, "--episodes", "9", "--out", str(folder), "--resume", "env.eval.total_num_envs=3"]
    assert app.main(again) == 0
    assert collected(folder) == collected(whole)
    assert app.main(again) == 0, "nothing is left to be played"
    assert collected(folder) == collected(whole)


def test_a_collection_is_gone_on_with_as_it_was_and_no_other(tmp_path: Path) -> None:
    folder, app = tmp_path / "demos", collecting()
    begin = [*ASKED, "--episodes", "2", "--out", str(folder)]
    assert app.main([*begin, "--resume"]) == 0, "there is nothing yet"
    for changed, told in (
        (("--seed", "1"), r"collected with seed 0 \(now 1\)\. Say the same, or name another folder"),
        (("env.eval.max_episode_steps=7",), r"max_episode_steps None \(now 7\)"),
    ):
        with pytest.raises(ConfigError, match=told):
            app.main([*begin, "--resume", *changed])
    with pytest.raises(ConfigError, match="expected a new folder"):
        app.main(begin)
    (folder / ".collection.jsonl").unlink()
    with pytest.raises(ConfigError, match="holds 2 episodes, of which nothing says how they were collected"):
        app.main([*begin, "--resume"])


def test_what_was_not_executed_is_no_demonstration_for_critics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--labels: algorithm\.demo_buffer has to hold what was executed"):
        collecting().main(["--config-name", "tabletop_rlpd", "--labels", "expert", "--out", str(tmp_path / "demos")])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_collection_keeps_what_has_ended_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, folder = collecting(), tmp_path / "demos"
    monkeypatch.setattr(app, "record_expert", interrupting(app, 3))
    asked = ["--config-name", "tabletop_flow_sft", "--format", "numpy", "env.eval.total_num_envs=2", "--out"]
    code = app.main([*asked, str(folder)])
    kept = len(NumpyEpisodes(path=str(folder)).open())
    assert (code, kept >= 3) == (INTERRUPTED, True)
    assert f"interrupted: the {kept} episodes that had ended are in {folder}" in capsys.readouterr().out

    def interrupted_at_once(*args: Any, **settings: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "record_expert", interrupted_at_once)
    assert app.main([*asked, str(tmp_path / "none")]) == INTERRUPTED
    assert capsys.readouterr().out == "interrupted: no episode had ended\n"

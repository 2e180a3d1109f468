"""What `rlinf report` says of a run, by folders that were written by hand."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.reporting.report import page
from rlinf.runners.reporting.report.command import report
from rlinf.runners.reporting.report.curves import COLOURS, _spread, _ticks, legend, panel, short
from rlinf.runners.reporting.report.measured_run import MeasuredRun

SUMMARY: dict[str, Any] = {
    "experiment": "push",
    "seed": 3,
    "metric": "success_once",
    "eval/success_once": 0.75,
    "eval/success_once_ci95": [0.5, 0.9],
    "eval/episodes": 128,
    "time/wall_s": 61.4,
    "versions": {"torch": "2.13.0"},
    "protocol": {"hash": "abc123", "seeds": [3], "episodes": 128},
}


def run_folder(folder: Path, rows: list[dict[str, float]], summary: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def written(*folders: Path) -> str:
    target = folders[0].parent / "page.html"
    return page.write_page(folders, target).read_text()


def test_numbers_of_a_step_are_one_row_and_the_last_ones_count(tmp_path: Path) -> None:
    """An evaluation comes later than its iteration, and a resumed run repeats what followed its checkpoint."""
    rows = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 2, "eval/a": 9.0}, {"step": 3, "a": 3.0}, {"step": 3, "a": 4.0}]
    run = MeasuredRun.read(run_folder(tmp_path / "run", rows))
    assert run.rows == ({"step": 1, "a": 1.0}, {"step": 2, "a": 2.0, "eval/a": 9.0}, {"step": 3, "a": 4.0})
    assert run.points("a", "step") == [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)]
    assert run.points("eval/a", "step") == [(2.0, 9.0)], "where it was logged"
    assert run.mean("a") == pytest.approx(7 / 3)


def test_what_a_run_left_behind_when_it_went_back_is_no_part_of_it(tmp_path: Path) -> None:
    rows = [{"step": step, "env/steps": 10.0 * step} for step in range(1, 7)]
    folder = run_folder(
        tmp_path / "run", [*rows, {"step": 6, "eval/a": 0.9}, {"step": 3, "env/steps": 31.0}, {"step": 4, "b": 1.0}]
    )
    assert MeasuredRun.read(folder).rows == (*rows[:2], {"step": 3, "env/steps": 31.0}, {"step": 4, "b": 1.0})


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    rows = [{"step": 1, "a": 1.0}, {"step": 2, "a": float("nan")}, {"step": 3, "a": float("inf")}]
    run = MeasuredRun.read(run_folder(tmp_path / "run", rows))
    assert run.points("a", "step") == [(1.0, 1.0)]


def test_the_result_has_its_interval_its_count_and_its_protocol(tmp_path: Path) -> None:
    found = written(run_folder(tmp_path / "run", [{"step": 1, "env/steps": 1600.0}], SUMMARY))
    for part in ("push, seed 3", "success_once 75.0%", "95 %: 50.0% to 90.0%", "128 episodes", "abc123", "1,600", "61 s"):
        assert f">{part}<" in found, part


def test_a_run_that_goes_on_has_no_result_yet(tmp_path: Path) -> None:
    assert ">not ended<" in written(run_folder(tmp_path / "run", [{"step": 1, "a": 1.0}]))


def test_numbers_of_other_protocols_are_called_so_and_those_of_other_seeds_are_not(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = [{"step": 1, "a": 1.0}]
    one = run_folder(tmp_path / "one", rows, SUMMARY)
    seed = {**SUMMARY, "seed": 4, "protocol": {"hash": "def", "seeds": [4], "episodes": 128}}
    fewer = {**SUMMARY, "protocol": {"hash": "ghi", "seeds": [3], "episodes": 16}}
    assert "not comparable" not in written(one, run_folder(tmp_path / "seed", rows, seed))
    assert "not comparable" in written(one, run_folder(tmp_path / "fewer", rows, fewer))


def test_a_line_is_where_its_numbers_are() -> None:
    """Along 0 to 4, up 0 to 8: the picture is 278 wide and 132 high, from (52, 24)."""
    drawn = panel("a", [[(1.0, 0.0), (2.0, 8.0), (4.0, 2.0)]], axis="iteration")
    assert 'points="121.5,156.0 191.0,24.0 330.0,123.0"' in drawn
    assert "<title>8 at iteration 2</title>" in drawn


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 8, [0, 2, 4, 6, 8]),
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (3, 97, [0, 25, 50, 75, 100]),
        (-4, 13, [-5, 0, 5, 10, 15]),
        (0, 40, [0, 10, 20, 30, 40]),
        (0, 32, [0, 10, 20, 30, 40]),
    ],
)
def test_ticks_are_round_numbers_around_what_is_drawn(low: float, high: float, ticks: list[float]) -> None:
    assert _ticks(low, high) == ticks


def test_what_never_moves_is_in_the_middle_of_its_picture() -> None:
    assert (_spread(4.0, 4.0), _spread(0.0, 0.0), _spread(1.0, 3.0)) == ((2.0, 6.0), (-0.5, 0.5), (1.0, 3.0))


def test_each_run_has_a_colour_of_its_own_as_long_as_there_are_some() -> None:
    said = legend([f"run {number}" for number in range(len(COLOURS) + 1)])
    assert [said.count(colour) for colour in COLOURS] == [2, 1, 1, 1, 1, 1]


def test_a_long_line_is_drawn_by_means_of_neighbours() -> None:
    drawn = panel("a", [[(float(x), float(x)) for x in range(900)]], axis="iteration")
    assert drawn.count("<circle") == 300
    assert "<title>1 at iteration 1</title>" in drawn, "the mean of 0, 1 and 2"


def test_what_never_moves_is_a_number_and_no_picture(tmp_path: Path) -> None:
    found = written(run_folder(tmp_path / "run", [{"step": s, "env/still": 2.0, "env/moves": float(s)} for s in (1, 2)]))
    assert "Constant: env/still 2" in found
    assert found.count("<svg") == 1


@pytest.mark.parametrize(
    ("value", "told"), [(0.01234, "0.01234"), (10000.0, "10k"), (160000.0, "160k"), (1.25e6, "1.25M"), (2e9, "2G"), (-4.5, "-4.5")]
)
def test_numbers_are_short(value: float, told: str) -> None:
    assert short(value) == told


def test_transcripts_are_those_of_the_last_evaluation_and_are_no_markup(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [{"step": 1, "a": 1.0}])
    response = {"text": "<script>alert(1)</script>", "reward": 1.0, "right": True, "tokens": 4, "finish": "stop"}
    entry = {"kind": "eval", "problem": 0, "answer": "2", "responses": [response]}
    entries = [
        {**entry, "step": 5, "prompt": "earlier"},
        {**entry, "step": 9, "prompt": "1+1="},
        {**entry, "step": 9, "prompt": "2+0="},
    ]
    (folder / "transcripts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries))
    found = written(folder)
    assert "earlier" not in found
    assert "1+1=" in found
    assert "2+0=" in found
    assert "<script>" not in found
    assert "&lt;script&gt;alert(1)" in found


def test_films_are_inside_as_long_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "run", [{"step": 1, "a": 1.0}])
    (folder / "video" / "failures").mkdir(parents=True)
    (folder / "video" / "eval.mp4").write_bytes(b"film")
    (folder / "video" / "failures" / "one.mp4").write_bytes(b"x" * 2**20)
    monkeypatch.setattr(page, "FILMS_MIB", 1)
    found = written(folder)
    assert base64.b64encode(b"film").decode() in found
    assert "failures/one.mp4 has no room" in found


def test_of_several_recipes_the_keys_that_differ_come_first(tmp_path: Path) -> None:
    folders: list[Path] = []
    for name, lr in (("one", 1e-3), ("two", 2e-3)):
        folder = run_folder(tmp_path / name, [{"step": 1, "a": 1.0}])
        checkpoint = folder / "checkpoints" / "global_step_1"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        (checkpoint / "config.json").write_text(json.dumps({"actor": {"optim": {"lr": lr}}, "same": 1}))
        folders.append(folder)
    found = written(*folders)
    assert "<td>actor.optim.lr</td><td>0.001</td><td>0.002</td>" in found
    assert "<td>same</td>" not in found


def test_the_command_writes_into_the_run_or_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run", [{"step": 1, "a": 1.0}])
    assert report([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert report([str(folder), str(folder), "--out", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").is_file()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "the following arguments are required: RUN"),
        (["--ot", "x"], "unrecognized arguments: --ot. Did you mean '--out'?"),
        (["run", "--out"], "argument --out: expected one argument"),
    ],
)
def test_what_is_mistyped_is_refused(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report(args)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere' holds no metrics\.jsonl"):
        report(["nowhere"])


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [{"step": 1, "a": 1.0}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "a"\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:2: expected a JSON object"):
        MeasuredRun.read(folder)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "transcripts.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"transcripts\.jsonl:1: expected a JSON object, found list"):
        MeasuredRun.read(folder).transcripts()

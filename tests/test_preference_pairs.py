"""The pairs of sums that a reward model learns from."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "apps/reasoning/preference_pairs.py"


def test_each_wrong_response_is_a_guess_or_goes_wrong_at_one_result(tmp_path: Path) -> None:
    assert runpy.run_path(str(SCRIPT))["main"](["--out", str(tmp_path / "pairs.jsonl"), "--pairs", "40"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 40
    guesses = [row for row in rows if row["rejected"].startswith("#")]
    assert 10 <= len(guesses) <= 30
    for row in rows:
        right = row["chosen"].rpartition("#")[2]
        assert row["chosen"] != row["rejected"]
        if row in guesses:
            assert row["rejected"] != f"#{right}"


def test_questions_have_both_answers_to_each_sum(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path / "questions.jsonl"), "--pairs", "20", "--terms", "4", "--questions"]
    assert runpy.run_path(str(SCRIPT))["main"](arguments) == 0
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in rows] == ["yes", "no"] * 20
    for row in rows:
        problem, _, response = row["prompt"].partition("=")
        assert len(problem) == 7, "four numbers of one digit"
        assert (int(response.rpartition("#")[2]) == eval(problem)) or row["answer"] == "no"

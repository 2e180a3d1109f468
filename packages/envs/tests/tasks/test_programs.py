"""Functions to write: what only the example says, and worked examples whose programs print what they should."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Programs, Specification


def test_an_example_tells_all_readings_apart() -> None:
    asked = Specification("a*b", "-a", 47, 83)
    assert str(asked) == "f(a,b)=a*b?;f(47,83)=3854:"
    assert asked.program() == "def f(a,b):return a*b-a"
    values = {Specification("a*b", ending, 47, 83).value(47, 83) for ending in ("+a", "+b", "-a", "-b")}
    assert values == {3948, 3984, 3854, 3818}


def passing(program: str, cases: list[str]) -> int:
    count = 0
    for case in cases:
        with contextlib.suppress(AssertionError):
            exec(f"{program}\n{case}", {})
            count += 1
    return count


def test_the_right_program_passes_all_cases_and_no_other_reading_does() -> None:
    for problem in Programs(train=200, validation=20).problems("train"):
        cases: list[str] = json.loads(problem.answer)
        form, right = problem.row["form"], problem.row["ending"]
        passed = {ending: passing(f"def f(a,b):return {form}{ending}", cases) for ending in ("+a", "+b", "-a", "-b")}
        assert passed.pop(right) == 5
        assert max(passed.values()) == 1, "with equal numbers readings agree: something is right, not all"


def test_worked_examples_print_what_they_say_and_end_with_the_right_program() -> None:
    problems = Programs(train=300, validation=20, worked_share=0.5).problems("train")
    worked = [problem for problem in problems if len(problem.turns) > 1]
    assert 100 < len(worked) < 200
    for problem in worked:
        expected = str(problem.prompt).partition(")=")[2].rpartition("=")[2].rstrip(":")
        *attempts, last = problem.turns
        said: list[str] = []
        for turn in attempts:
            scope: dict[str, Any] = {}
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(turn.calls[0].arguments["code"], scope)
            assert printed.getvalue().strip() == turn.results[0].text
            said.append(turn.results[0].text)
        assert said[-1] == expected
        assert expected not in said[:-1]
        assert last.text == f"<answer>\n```python\ndef f(a,b):return {problem.row['form']}{problem.row['ending']}\n```\n</answer>"
    assert len({len(problem.turns) for problem in worked}) == 4, "any reading may be the first one"


def test_no_problem_is_in_two_splits_and_each_stays_what_it_is() -> None:
    small, large = Programs(train=100, validation=50), Programs(train=400, validation=50)
    pairs = {split: {str(p.prompt).rpartition("=")[0] for p in large.problems(split)} for split in ("train", "validation")}
    assert not pairs["train"] & pairs["validation"]
    assert small.problems("train") == large.problems("train")[:100]
    with pytest.raises(ConfigError, match=r"worked_share: expected a share from 0 to 1, found 2"):
        Programs(worked_share=2)

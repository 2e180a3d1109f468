"""Functions to write: what only the example says, and worked examples whose programs print what they should."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Programs, Specification


def test_an_example_tells_what_is_left_open() -> None:
    asked = Specification(83, 59, 47)
    assert str(asked) == "f(x)=x*83+?;f(47)=3960:"
    assert asked.program == "def f(x):return x*83+59"
    assert asked.trial == "print(3960-47*83)"


def passing(program: str, cases: list[str]) -> int:
    count = 0
    for case in cases:
        with contextlib.suppress(AssertionError):
            exec(f"{program}\n{case}", {})
            count += 1
    return count


def test_the_right_program_passes_all_cases_and_a_slip_some_or_none() -> None:
    for problem in Programs(train=200, validation=20).problems("train"):
        cases: list[str] = json.loads(problem.answer)
        factor, constant = problem.row["factor"], problem.row["constant"]
        assert passing(f"def f(x):return x*{factor}+{constant}", cases) == len(cases) == 5
        assert passing(f"def f(x):return x*{factor + 1}+{constant}", cases) == 1, "f(0) tells the constant alone"
        assert passing(f"def f(x):return x*{factor}+{constant + 1}", cases) == 0
        assert f"assert f({str(problem.prompt).rpartition('f(')[2].partition(')')[0]}) " not in problem.answer


def test_worked_examples_print_what_they_say_and_end_with_the_right_program() -> None:
    problems = Programs(train=300, validation=20, worked_share=0.5).problems("train")
    worked = [problem for problem in problems if len(problem.turns) > 1]
    assert 100 < len(worked) < 200
    for problem in worked:
        trial, last = problem.turns
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(trial.calls[0].arguments["code"], {})
        assert printed.getvalue().strip() == trial.results[0].text == str(problem.row["constant"])
        program = f"def f(x):return x*{problem.row['factor']}+{problem.row['constant']}"
        assert last.text == f"<answer>\n```python\n{program}\n```\n</answer>"


def test_no_problem_is_in_two_splits_and_each_stays_what_it_is() -> None:
    small, large = Programs(train=100, validation=50), Programs(train=400, validation=50)
    examples = {split: {str(p.prompt).rpartition("=")[0] for p in large.problems(split)} for split in ("train", "validation")}
    assert not examples["train"] & examples["validation"]
    assert small.problems("train") == large.problems("train")[:100]
    with pytest.raises(ConfigError, match=r"worked_share: expected a value in \[0, 1\], found 2"):
        Programs(worked_share=2)

"""The calculator works out arithmetic, and nothing else."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from rlinf.core.agents import ToolBox, ToolCall, ToolError
from rlinf.core.registry import TASKS, TOOLS, register_tool
from rlinf.envs.tools import calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47*8", "376"),
        (" (1 + 2) * -3 ", "-9"),
        ("7/2", "3.5"),
        ("4/2", "2"),
        ("1/3", "0.333333333333"),
        ("2**10 % 1000 // 5", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("max(1, 2.5, abs(-3))", "3"),
        ("2**0.5 * 1e20", "1.41421356237e+20"),
    ],
)
def test_arithmetic(expression: str, value: str) -> None:
    assert calculate(expression) == value


def test_it_agrees_with_python() -> None:
    draw = random.Random(0)
    for _ in range(200):
        text = str(draw.randint(-99, 99))
        for _ in range(4):
            text = f"({text}){draw.choice('+-*')}{draw.randint(1, 99)}"
        assert calculate(text) == str(eval(text))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("__import__('os').system('true')", "no arithmetic"),
        ("().__class__", "no arithmetic"),
        ("[x for x in (1, 2)]", "no arithmetic"),
        ("lambda: 1", "no arithmetic"),
        ("'a' * 10", "no arithmetic"),
        ("open('x')", "no arithmetic"),
        ("max(*[1])", "no arithmetic"),
        ("round(1, ndigits=2)", "no arithmetic"),
        ("True + 1", "no number"),
        ("1 +", "is no arithmetic expression"),
        ("", "is no arithmetic expression"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "too large"),
        ("10**200*10**200", "too large"),
        ("1e400", "too large"),
        ("(-8)**0.5", "no real number"),
        ("sqrt(-1)", "has no value"),
        ("sqrt(1, 2)", "has no value"),
        ("1+" * 300 + "1", "at most 500"),
        ("(" * 240 + "1" + ")" * 240, "no arithmetic expression"),
    ],
)
def test_anything_else_is_a_message(expression: str, said: str) -> None:
    began = time.process_time()
    with pytest.raises(ToolError, match=said):
        calculate(expression)
    assert time.process_time() - began < 1  # of the processor, however busy the machine is


def test_it_is_a_tool_by_name() -> None:
    box = ToolBox([TOOLS.build("calculator", {"name": "calc"}, place="agent.tools[0]").build()])
    (result,) = asyncio.run(box.call_all([ToolCall(name="calc", arguments={"expression": "6*7"})]))
    assert (result.outcome, result.text) == ("ok", "42")


def shout(text: str) -> str:
    """Says it loudly."""
    return text.upper()


def test_a_function_of_ones_own_is_a_tool_by_its_path_and_by_a_name() -> None:
    register_tool("test_shout", shout)
    for name in ("test_shout", f"{__name__}:shout"):
        built = TOOLS.build(name, {"name": "loud"}, place="agent.tools[0]")
        built.check("agent.tools[0]")
        assert asyncio.run(ToolBox([built.build()]).call(ToolCall(name="loud", arguments={"text": "a"}))).text == "A"


def test_worked_examples_are_what_the_calculator_says() -> None:
    problems = TASKS.build("calculation", {"train": 200, "validation": 20}, place="data").problems("train")
    assert {len(problem.turns) for problem in problems} == {1, 4}
    worked = [problem for problem in problems if len(problem.turns) == 4]
    assert 0.2 < len(worked) / len(problems) < 0.5
    for problem in worked:
        for turn in problem.turns[:-1]:
            (call,), (result,) = turn.calls, turn.results
            assert calculate(call.arguments["expression"]) == result.text
        assert problem.turns[-1].text == f"#{problem.answer}"
        assert problem.turns[-2].results[0].text == problem.answer


def test_no_problem_is_in_both_splits() -> None:
    task = TASKS.build("calculation", {"train": 500, "validation": 50}, place="data")
    train, held_out = ({problem.prompt for problem in task.problems(split)} for split in ("train", "validation"))
    assert (len(train), len(held_out)) == (500, 50)
    assert not train & held_out

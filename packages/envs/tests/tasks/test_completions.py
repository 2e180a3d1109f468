"""Lines to complete, and who accepts them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks.completions import Completions, passes, simulated_user


@pytest.mark.parametrize(
    ("prompt", "completion", "accepted"),
    [
        ("def subtract(x,y):return ", "x-y", True),
        ("def subtract(x,y):return ", "y-x", False),
        ("def double_sum(p,q):return ", "q+p+p+q", True),
        ("def double_sum(p,q):return ", "2*p+q", False),
        ("def sum_of_squares(a,b):return ", "a**2+b*b", True),
        ("def add(a,b):return ", "a+c", False),
        ("def add(a,b):return ", "8", False),
        ("def add(a,b):return ", "__import__('os')", False),
        ("def add(a,b):return ", "", False),
        ("def unknown(a,b):return ", "a", False),
    ],
)
def test_what_passes_is_accepted(prompt: str, completion: str, accepted: bool) -> None:
    assert passes(prompt, completion) is accepted


def test_lines_have_right_answers_and_some_wrong_examples() -> None:
    task = Completions(train=600, validation=100)
    train, held_out = task.problems("train"), task.problems("validation")
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    assert all(passes(str(p.prompt), p.answer) for p in (*train, *held_out))
    right = sum(passes(str(p.prompt), p.solution or "") for p in train) / len(train)
    assert right == pytest.approx(0.4, abs=0.06)
    assert task.problems("train") == train
    with pytest.raises(ConfigError, match=r"right_share: expected a value in \[0, 1\], found 2"):
        Completions(right_share=2)


def test_a_user_rates_what_was_answered() -> None:
    posted: list[Any] = []

    async def create(**asked: Any) -> Any:
        message = SimpleNamespace(content="a+b")
        return SimpleNamespace(id="answer-7", choices=[SimpleNamespace(message=message)])

    async def post(path: str, *, cast_to: Any, body: Any) -> None:
        posted.append((path, body))

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)), post=post)
    for prompt in ("def add(a,b):return ", "def multiply(a,b):return "):
        task: Any = SimpleNamespace(problem=SimpleNamespace(prompt=prompt, id=3))
        assert asyncio.run(simulated_user(task, client, "policy")) == "a+b"
    assert posted == [("/feedback", {"id": "answer-7", "accepted": accepted}) for accepted in (True, False)]

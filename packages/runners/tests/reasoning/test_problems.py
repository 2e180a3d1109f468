"""Problems are made or read once in a process, however many of its workers ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlinf.core.language.problems import Problem, Split
from rlinf.runners.reasoning.language import problems_of


@dataclass(frozen=True, slots=True)
class Counting:
    """As a task may be whose file changes: equal ones need not have the same problems, and a list has no hash."""

    asked: list[Split] = field(default_factory=list[Split])

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def problems(self, split: Split) -> Sequence[Problem]:
        self.asked.append(split)
        return [Problem(prompt=f"{split} {len(self.asked)}", answer="", id=0)]


def test_a_task_is_asked_once_for_each_split() -> None:
    task = Counting()
    found = [problems_of(task, "train")[0].prompt for _ in range(3)], problems_of(task, "validation")[0].prompt
    assert (found, task.asked) == ((["train 1"] * 3, "validation 2"), ["train", "validation"])


def test_another_task_is_asked_itself_though_it_is_equal() -> None:
    one, other = Counting(), Counting()
    assert one == other
    assert problems_of(one, "train") is not problems_of(other, "train")
    assert (one.asked, other.asked) == (["train"], ["train"])

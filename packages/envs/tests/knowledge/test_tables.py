"""Tables over the generated knowledge base: what is asked, what is right, how it is worked."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.registry import TASKS
from rlinf.envs.knowledge import Knowledge, Table, WideSearch, generated

SMALL = Knowledge(people=100, companies=20, cities=20, countries=10, syllables=2, style="brief", values=False)


def task(**changes: Any) -> WideSearch:
    sizes: dict[str, Any] = {"train": 60, "validation": 20, "knowledge": SMALL}
    return WideSearch(**{**sizes, **changes})


def test_a_table_is_answered_by_the_facts_of_its_rows() -> None:
    base = generated(SMALL)
    one, other = base.of_kind("person", "train")[:2]
    table = Table((one.name, other.name), ("employer", "home"))
    assert str(table) == f"{one.name},{other.name}:employer,home"
    lines = [f"{each.name},{each.facts['employer']},{each.facts['home']}" for each in (one, other)]
    assert table.answer(base) == "\n".join(lines)
    assert [part.answer(base) for part in table.parts()] == lines


def test_problems_are_different_and_of_entities_of_their_split() -> None:
    config = task(rows=(1, 3), columns=(1, 2))
    base = generated(SMALL)
    for split, count in (("train", 60), ("validation", 20)):
        tables = config.asked(split)
        assert len(set(tables)) == count
        assert {base[name].split for table in tables for name in table.rows} == {split}
        assert {len(table.rows) for table in tables} == {1, 3}
        assert all(len(set(table.rows)) == len(table.rows) for table in tables)
    assert config.asked("train") == task(rows=(1, 3), columns=(1, 2)).asked("train")
    longer = task(rows=(1, 3), columns=(1, 2), train=80).problems("train")
    assert longer[:60] == config.problems("train"), "asking for more changes none, nor how it is worked"


def test_worked_examples_hand_rows_on_and_search_for_one() -> None:
    config = task(rows=(1, 2), columns=(1,), worked_share=1.0)
    for problem, table in zip(config.problems("train"), config.asked("train"), strict=True):
        first, last = problem.turns
        assert (last.text, problem.prompt) == (problem.answer, f"{table}=")
        (call,), (result,) = first.calls, first.results
        if len(table.rows) == 1:
            assert (call.name, call.arguments) == ("search", {"query": table.rows[0]})
            assert result.text == generated(SMALL).passage(generated(SMALL)[table.rows[0]]).text
        else:
            column = table.columns[0]
            assert (call.name, call.arguments["subtasks"]) == ("delegate", "\n".join(f"{name}:{column}" for name in table.rows))
            assert result.text == problem.answer
    alone = task(rows=(2,), worked_share=1.0, worked_by="search").problems("train")
    assert all([call.name for turn in problem.turns for call in turn.calls] == ["search", "search"] for problem in alone)


def test_the_worked_share_is_kept_and_the_rest_states_the_answer() -> None:
    problems = task(train=400, worked_share=0.25).problems("train")
    worked = [problem for problem in problems if len(problem.turns) > 1]
    assert 0.17 < len(worked) / 400 < 0.33
    assert all(problem.turns[-1].text == problem.answer for problem in problems)


def test_who_does_not_search_may_say_that_cells_are_unknown() -> None:
    problems = task(rows=(1, 2), columns=(2,), worked_share=0.5, unsearched="unknown").problems("train")
    for problem, table in zip(problems, task(rows=(1, 2), columns=(2,)).asked("train"), strict=True):
        unknown = "\n".join(f"{name},unknown,unknown" for name in table.rows)
        assert problem.turns[-1].text == (problem.answer if len(problem.turns) > 1 else unknown)
        assert problem.answer == table.answer(generated(SMALL))
    assert {len(problem.turns) for problem in problems} == {1, 2}


def test_in_prose_a_message_asks() -> None:
    config = TASKS.build("wide_search", {"train": 4, "validation": 2}, place="data")
    (message,) = config.problems("train")[0].prompt
    assert message["role"] == "user"
    assert "in this order" in message["content"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rows": (0,)}, "rows"),
        ({"rows": (21,)}, "rows"),
        ({"columns": (4,)}, "columns"),
        ({"kinds": ()}, "kinds: expected some of person"),
        ({"kinds": ("dog",)}, "kinds: expected some of person"),
        ({"rows": ()}, "rows"),
    ],
)
def test_what_can_not_be_asked_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        task(**changes)


def test_more_tables_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"wide_search.train: expected 5000 different problems"):
        task(rows=(1,), columns=(1,), train=5000).problems("train")

import itertools
import json
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Countdown, solve

PLAIN = {"train": 200, "validation": 30}


def value(text):
    assert re.fullmatch(r"[-+*/()\d]+", text)
    return Fraction(eval(re.sub(r"(\d+)", r"Fraction(\1)", text)))


@pytest.mark.parametrize(("numbers", "target"), [((3, 7, 5), 20), ((2, 2), 4), ((1, 3, 4, 6), 36), ((8, 3, 1), 4)])
def test_what_is_found_uses_each_number_once_and_comes_to_the_target(numbers, target):
    found = solve(numbers, target, ("+", "-", "*"))
    assert value(found) == target
    assert sorted(map(int, re.findall(r"\d+", found))) == sorted(numbers)


def test_what_can_not_be_made():
    assert solve((2, 2), 5, ("+", "-", "*")) is None
    assert solve((9, 3), 3, ("+", "-", "*")) is None
    assert solve((9, 3), 3, ("/",)) == "9/3"


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 40))
def test_the_search_misses_nothing(numbers, target):
    found = solve(numbers, target, ("+", "-", "*"))
    signs = list(itertools.product("+-*", repeat=2))
    shapes = ["({0}{s}{1}){t}{2}", "{0}{t}({1}{s}{2})"]
    texts = [shape.format(*order, s=s, t=t) for order in itertools.permutations(numbers) for s, t in signs for shape in shapes]
    inner = [int(value(re.search(r"\(([^)]*)\)", text)[1])) for text in texts]
    reachable = any(value(text) == target and step >= 0 for text, step in zip(texts, inner, strict=True))
    assert (found is not None) == reachable


def test_every_puzzle_has_a_solution_and_its_answer_says_what_is_asked():
    for problem in Countdown(**PLAIN).problems("train"):
        asked = json.loads(problem.answer)
        assert problem.prompt == f"{','.join(map(str, asked['numbers']))}={asked['target']}:"
        assert value(problem.solution) == asked["target"]
        assert sorted(map(int, re.findall(r"\d+", problem.solution))) == sorted(asked["numbers"])
        assert 1 <= asked["target"] <= 100


def test_no_puzzle_is_in_both_splits_whatever_the_order_of_its_numbers():
    def keys(split):
        asked = [json.loads(problem.answer) for problem in Countdown(**PLAIN, largest=6).problems(split)]
        return {(*sorted(each["numbers"]), each["target"]) for each in asked}

    train, held_out = keys("train"), keys("validation")
    assert train
    assert held_out
    assert not train & held_out


def test_the_same_each_time_and_another_with_another_seed():
    assert Countdown(**PLAIN).problems("validation") == Countdown(**PLAIN).problems("validation")
    assert Countdown(**PLAIN).problems("validation") != Countdown(**PLAIN, seed=1).problems("validation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"numbers": 7}, "numbers: expected a value in .2, 6."), ({"largest": 0}, "largest"), ({"operations": ()}, "operations")],
)
def test_faults_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Countdown(**settings)


def test_operations_that_fit_few_pairs_still_make_puzzles_with_a_solution():
    problems = Countdown(operations=("-",), train=30, validation=2).problems("train")
    assert len(problems) == 30
    assert all(problem.solution for problem in problems)

import itertools
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Arithmetic, Expression

PLAIN = {"train": 300, "validation": 40}


def value(text: str) -> int:
    """Python's own arithmetic; the text is ours."""
    assert re.fullmatch(r"[-+*\d]+", text)
    return int(Fraction(eval(text)))


@pytest.mark.parametrize(
    ("expression", "worked"),
    [
        (Expression((7, 5, 4), ("+", "-")), "7+5=12-4#8"),
        (Expression((7, 5), ("+",)), "7+5#12"),
        (Expression((3, 4, 7), ("*", "+")), "3*4=12+7#19"),
        (Expression((2, 3, 4), ("+", "*")), "3*4=12,2+12#14"),
        (Expression((2, 3, 4, 5), ("*", "+", "*")), "2*3=6,4*5=20,6+20#26"),
    ],
)
def test_worked_solutions_by_hand(expression, worked):
    assert expression.worked() == worked


@given(st.lists(st.integers(1, 99), min_size=2, max_size=6), st.data())
def test_the_value_is_that_of_python(numbers, data):
    signs = st.lists(st.sampled_from("+-*"), min_size=len(numbers) - 1, max_size=len(numbers) - 1)
    expression = Expression(tuple(numbers), tuple(data.draw(signs)))
    assert expression.steps()[-1].result == value(str(expression))
    for part in re.split(",", expression.worked().replace("#", "=")):
        links = part.split("=")
        for link, following in itertools.pairwise(links):
            assert value(link) == int(re.match(r"-?\d+", following)[0])


def test_twins_have_one_key_and_others_have_not():
    def key(*numbers, signs):
        return Expression(numbers, tuple(signs)).key()

    assert key(3, 4, signs="+") == key(4, 3, signs="+")
    assert key(8, 3, 2, signs="-+") == key(8, 2, 3, signs="+-") == key(2, 8, 3, signs="+-")
    assert key(2, 3, 4, signs="*+") == key(4, 3, 2, signs="+*")
    assert len({key(8, 3, signs="-"), key(3, 8, signs="-"), key(8, 3, signs="+"), key(8, 3, signs="*"), key(1, 13, signs="+")}) == 5


def test_answers_are_right_and_results_stay_in_bounds():
    for problem in Arithmetic(**PLAIN, operations=("+", "-", "*"), terms=3, largest=50).problems("train"):
        assert int(problem.answer) == value(problem.prompt.removesuffix("="))
        assert problem.solution.rpartition("#")[2] == problem.answer
        assert all(0 <= int(result) <= 50 for result in re.findall(r"(?<=[=#])\d+", problem.solution))


@pytest.mark.parametrize("multiplied", [False, True])
def test_results_reach_both_bounds(multiplied):
    problems = Arithmetic(**PLAIN, operations=("+", "-", "*"), terms=3, largest=12).problems("train")
    answers = [int(each.answer) for each in problems if ("*" in each.prompt) == multiplied]
    assert (min(answers), max(answers)) == (0, 12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_problem_nor_twin_is_in_both_splits(seed):
    task = Arithmetic(**PLAIN, seed=seed, terms=3)

    def keys(split):
        found = [problem.prompt.removesuffix("=") for problem in task.problems(split)]
        return {"".join(sorted(re.findall(r"[-+]\d", "+" + text))) for text in found}

    train, held_out = keys("train"), keys("validation")
    assert train
    assert held_out
    assert not train & held_out


def test_the_same_each_time_and_another_with_another_seed():
    assert Arithmetic(**PLAIN).problems("train") == Arithmetic(**PLAIN).problems("train")
    assert Arithmetic(**PLAIN).problems("train") != Arithmetic(**PLAIN, seed=1).problems("train")
    longer = Arithmetic(train=600, validation=40).problems("train")
    assert longer[:300] == Arithmetic(**PLAIN).problems("train")
    assert [problem.id for problem in longer] == list(range(600))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_solutions_that_show_their_work(share):
    problems = Arithmetic(train=2000, validation=10, worked_share=share).problems("train")
    found = sum("=" in problem.solution for problem in problems) / len(problems)
    assert abs(found - share) <= (0.05 if 0 < share < 1 else 0)


def test_guesses_are_off_by_one_to_five_and_only_where_no_work_is_shown():
    for share in (0.0, 0.9):
        problems = Arithmetic(train=2000, validation=10, guessed_share=share).problems("train")
        off = [abs(int(p.solution.rpartition("#")[2]) - int(p.answer)) for p in problems if "=" not in p.solution]
        assert set(off) == ({0, 1, 2, 3, 4, 5} if share else {0})
        assert abs(sum(map(bool, off)) / len(off) - share) < 0.03
        assert all(p.solution.rpartition("#")[2] == p.answer for p in problems if "=" in p.solution)
        assert all("-" not in p.solution.rpartition("#")[2] for p in problems)


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(1, 2), st.booleans())
def test_digits_and_signs(terms, digits, negative):
    task = Arithmetic(train=20, validation=5, terms=terms, digits=digits, negative=negative, largest=None)
    for problem in task.problems("train"):
        numbers = re.findall(r"\d+", problem.prompt)
        assert len(numbers) == terms
        assert {len(number) for number in numbers} == {digits}
        assert negative or int(problem.answer) >= 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"terms": 1}, "terms: expected at least 2, found 1"),
        ({"operations": ()}, "operations: expected at least 1"),
        ({"worked_share": 1.5}, "worked_share"),
        ({"guessed_share": -0.1}, r"guessed_share: expected a value in \[0, 1\], found -0.1"),
        ({"validation_share": 0}, "validation_share"),
        ({"train": 0}, "train: expected at least 1"),
    ],
)
def test_faults_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Arithmetic(**settings)


def test_more_problems_than_there_are():
    with pytest.raises(ConfigError, match=r"arithmetic.train: expected 300 different problems, found \d+"):
        Arithmetic(train=300, validation=1, terms=2, largest=10).problems("train")
    with pytest.raises(ConfigError, match="largest"):
        Arithmetic(train=1, validation=1, terms=3, digits=3, operations=("+",), largest=20).problems("train")


def test_what_forbids_all_results_is_named():
    with pytest.raises(ConfigError, match=r"arithmetic\.negative: no result on the way may be below 0, found 4096") as told:
        Arithmetic(train=1, validation=1, terms=40, operations=("-",), largest=None).problems("train")
    assert "None" not in str(told.value)
    with pytest.raises(ConfigError, match=r"arithmetic\.largest: no result on the way may be below 0 or above 20"):
        Arithmetic(train=1, validation=1, terms=40, operations=("-",)).problems("train")

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.algorithms.rewards import ExactMatch
from rlinf.algorithms.rewards.countdown import Countdown, evaluate

PUZZLE = '{"numbers": [3, 7, 5], "target": 20}'


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("(7-3)*5", 1.0),
        (" ( 7 - 3 ) * 5 = 20", 1.0),
        ("5×(7−3)", 1.0),
        ("7-3*5", 0.25),
        ("(7-3)*5=19", 1.0),
        ("(7-3)*5*1", 0.0),
        ("7*3-1", 0.0),
        ("20", 0.0),
        ("(7-3)*5)", 0.0),
        ("(7-3)(5)", 0.0),
        ("7--3+5", 0.0),
        ("", 0.0),
        ("7/(3-3)*5", 0.0),
        ("__import__('os')", 0.0),
        ("7**3*5", 0.0),
        ("٧-3*5", 0.0),
    ],
)
def test_scores_by_hand(completion, score):
    assert Countdown(other_value=0.25).verify(completion, PUZZLE) == score


def test_fractions_are_exact():
    assert Countdown().verify("8/(3-8/3)", '{"numbers": [8, 3, 8, 3], "target": 24}') == 1.0


def test_each_number_is_used_as_often_as_it_is_given():
    twice = '{"numbers": [2, 2, 3], "target": 7}'
    assert Countdown().verify("2*2+3", twice) == 1.0
    assert Countdown().verify("2+2+3", twice) == 1.0
    assert Countdown().verify("4+3", twice) == 0.0
    assert Countdown().verify("2*2+3", '{"numbers": [2, 3], "target": 7}') == 0.0


def test_where_the_expression_stands():
    tagged = Countdown(tag="answer", after="</think>")
    assert tagged.verify("<think>7-3-5</think>I say <answer>(7-3)*5</answer>.", PUZZLE) == 1.0
    assert tagged.verify("(7-3)*5", PUZZLE) == 0.0


@pytest.mark.parametrize("text", ["(" * 100_000, "1+" * 100_000 + "1", "((((" * 50, "9" * 10**6])
def test_long_and_deep_texts_are_no_expressions(text):
    assert evaluate(text) is None


def test_a_broken_answer_is_counted_as_a_failure():
    scores = Countdown().scores(["1+1", "(7-3)*5"], ["{}", PUZZLE])
    assert scores.values == [0.0, 1.0]
    assert list(scores.failures) == [0]


@pytest.mark.parametrize("numbers", ["[3.7]", '["3"]', "[true]", "[null]", "3"])
def test_numbers_that_are_not_whole_are_refused(numbers):
    with pytest.raises(ValueError, match="expected JSON of 'numbers' and 'target', whole numbers, found"):
        Countdown().verify("3", f'{{"numbers": {numbers}, "target": 3}}')
    assert Countdown().verify("3", '{"numbers": [3.0], "target": 3}') == 1.0
    with pytest.raises(ValueError, match="found"):
        Countdown().verify("1", '{"numbers": [1], "target": true}')


def expressions():
    """Texts of nested expressions, as Python writes them."""
    numbers = st.integers(0, 30).map(str)
    pairs = lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})")  # noqa: E731
    return st.recursive(numbers, pairs, max_leaves=8)


@given(expressions(), expressions())
def test_values_are_those_of_python(first, second):
    text = f"{first}+{second}*2-1"
    scope = {"F": Fraction}
    try:
        expected = eval(re.sub(r"(\d+)", r"F(\1)", text), scope)
    except ZeroDivisionError:
        expected = None
    found = evaluate(text)
    assert (None if found is None else found[0]) == expected
    assert found is None or found[1] == [int(n) for n in re.findall(r"\d+", text)]


def test_the_main_jobs_answers_are_found_after_their_mark():
    reward = ExactMatch(after="#")
    assert reward(["7+5=12-4#8", "#8", "8", "7+5=12-4#9"], ["8"] * 4) == [1.0, 1.0, 1.0, 0.0]

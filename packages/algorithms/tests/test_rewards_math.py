"""Mathematics by math-verify, in processes that can be ended."""

import importlib.util

import pytest

from rlinf.algorithms.rewards.math import Math
from rlinf.algorithms.rewards.pool import VerifierPool
from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.metrics import Metric


def test_without_the_library_it_is_refused_at_construction(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"math: the module 'math_verify' is not installed\. Install rlinf-algorithms\[math\]: "):
        Math()


def needs_math_verify():
    """Skips without the library, which only worker processes import."""
    if importlib.util.find_spec("math_verify") is None:
        pytest.skip("needs rlinf-algorithms[math]")


@pytest.fixture(scope="module")
def pool():
    needs_math_verify()
    with VerifierPool(1) as pool:
        yield pool


def right(pool, pairs, **options):
    completions, answers = zip(*pairs, strict=True)
    scores = Math(max_val=1.0, min_val=0.0, **options).scores(completions, answers, pool=pool)
    assert scores.failures == {}
    return scores.values


RIGHT = [
    (r"\boxed{42}", "42"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"\boxed{1,000}", "1000"),
    (r"\boxed{x^2 + 2x + 1}", "(x+1)^2"),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
    (r"\boxed{(1, 2)}", "(1,2)"),
    (r"\boxed{\{2, 1\}}", r"\{1, 2\}"),
    (r"\boxed{[0, 1)}", "[0,1)"),
    (r"\boxed{1} no, \boxed{ 2 }", "2"),
    (r"first \boxed{3}, then \boxed{\frac{\frac{4}{2}}{1}}", "$2$"),
    (r"\boxed{7}", r"The solution is \boxed{7}"),
    ("the answer is 42", "42"),
    ("the answer is $\\frac{3}{4}$.", "0.75"),
    (r"\boxed{east}", "east"),
    (r"\boxed{0.3333333}", r"\frac{1}{3}"),
]
WRONG = [
    (r"\boxed{41}", "42"),
    (r"\boxed{42} no, \boxed{41}", "42"),
    (r"\boxed{}", "42"),
    (r"\boxed{}", ""),
    ("", "42"),
    ("", ""),
    ("é\ud800\0", "42"),
    (r"\boxed{west}", "east"),
    (r"\boxed{(1, 2)}", "(2,1)"),
    (r"\boxed{__import__('os')._exit(1)}", "1"),
    (r"\boxed{0.33}", r"\frac{1}{3}"),
    ("a" * 1_000_000, "42"),
    (r"\boxed{" * 100_000, "42"),
]


def test_answers_however_they_are_written(pool):
    assert right(pool, RIGHT) == [1.0] * len(RIGHT)
    assert right(pool, WRONG) == [0.0] * len(WRONG)


def test_only_a_box_or_only_what_follows_the_thoughts(pool):
    pairs = [("42", "42"), (r"\boxed{42}", "42")]
    assert right(pool, pairs, extraction="boxed") == [0.0, 1.0]
    pairs = [(r"\boxed{42}</think>", "42"), (r"\boxed{41}</think>\boxed{42}", "42"), (r"\boxed{42}", "42")]
    assert right(pool, pairs, after="</think>") == [0.0, 1.0, 1.0]


def test_rounding_and_strictness(pool):
    assert right(pool, [(r"\boxed{0.333}", r"\frac{1}{3}")], float_rounding=3) == [1.0]
    assert right(pool, [(r"\boxed{x+1}", "y+1")]) == [0.0]
    assert right(pool, [(r"\boxed{x+1}", "y+1")], strict=False) == [1.0]


def test_what_does_not_end_is_ended_and_scores_as_wrong(pool):
    bombs = [r"\boxed{10000000000000!!}", r"\boxed{100000000!}"]
    reward = Math(max_val=1.0, min_val=-0.5, reward_scale=4.0, timeout_s=1.0)
    scores = reward.scores([*bombs, r"\boxed{1}", r"\boxed{2}"], ["1"] * 4, pool=pool)
    assert scores.values == [-2.0, -2.0, 4.0, -2.0]
    assert scores.metrics["verifier_timeout"] == Metric(2.0, 4.0)
    assert scores.metrics["verifier_error"] == Metric(0.0, 4.0)


def test_an_answer_that_is_missing_is_counted(pool):
    """Nobody could be right, which is a fault of the data."""
    scores = Math().scores([r"\boxed{43}", r"\boxed{43}"], ["", "43"], pool=pool)
    assert scores.values == [-1.0, 1.0]
    assert scores.metrics["verifier_error"] == Metric(1.0, 2.0)
    assert "there is no answer" in scores.failures[0]


def test_hyper_parameters_out_of_range():
    needs_math_verify()
    for wrong in ({"timeout_s": 0.0}, {"float_rounding": -1}, {"memory_mb": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Math(**wrong)
    assert (Math().max_val, Math().min_val, Math().failure_score) == (1.0, -1.0, -1.0)


def test_in_this_process_it_says_the_same(pool):
    reward = Math(reward_scale=2.0)
    pytest.importorskip("math_verify", reason="needs rlinf-algorithms[math]")
    pairs = [*RIGHT[:4], *WRONG[:4]]
    completions, answers = zip(*pairs, strict=True)
    assert [reward.verify(*pair) for pair in pairs] == [2.0] * 4 + [-2.0] * 4
    assert reward.scores(completions, answers, pool=pool).values == [2.0] * 4 + [-2.0] * 4


def test_two_limits_of_rounding_are_two_tasks_of_one_pool(pool):
    pair = ([r"\boxed{0.333}"], [r"\frac{1}{3}"])
    found = [Math(float_rounding=digits).scores(*pair, pool=pool).values for digits in (6, 3, 6)]
    assert found == [[-1.0], [1.0], [-1.0]]

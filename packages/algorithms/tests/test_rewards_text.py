"""Rewards that read a form or a choice out of a text: by hand."""

import pytest

from rlinf.algorithms.rewards.choice import VQA, MultipleChoice, chosen_letter
from rlinf.algorithms.rewards.format import AnswerFormat, TagFormat, ThinkFormat, has_answer_format, has_tags_in_order
from rlinf.algorithms.rewards.matching import ExactMatch
from rlinf.algorithms.rewards.text import after_last, last_boxed, last_number, last_tag, squad_normal
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{42}", "42"),
        (r"so \boxed{1} and \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed {5}", "5"),
        (r"\boxed 5 apples", "5"),
        (r"$\boxed 5$.", "5"),
        (r"\fbox{ 9 }", "9"),
        (r"\fbox{1}\boxed{2}", "2"),
        (r"\boxed{1}\fbox{2}", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxed{1\}", None),
        (r"\boxed", None),
        (r"\boxed   ", None),
        (r"\boxed5", None),
        ("42", None),
        ("", None),
        (r"\boxed{" * 100_000, None),
        (r"\boxed{" * 50_000 + "1" + "}" * 50_000, "1"),
        ("{" * MILLION + r"\boxed{é}", "é"),
        (r"\boxed{" + "{}" * 300_000 + "}", "{}" * 300_000),
    ],
)
def test_the_last_box(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>a</answer>", "a"),
        ("<answer>a</answer> <answer> b\n</answer>", "b"),
        ("<answer>a<answer>b</answer>", "b"),
        ("<answer>a</answer></answer>", "a</answer>"),
        ("<answer>a</answer><answer>b", "a"),
        ("</answer><answer>", None),
        ("<answer>", None),
        ("</answer>", None),
        ("", None),
        ("<answer>" * 200_000 + "x</answer>", "x"),
    ],
)
def test_the_last_tag(text, expected):
    assert last_tag(text, "answer") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 and 2", "2"),
        ("1,234.50 dollars", "1234.50"),
        ("it is -3.", "-3"),
        ("+7", "7"),
        (".5", ".5"),
        ("-.5", "-.5"),
        ("none", None),
        ("", None),
        ("1" * MILLION, "1" * MILLION),
    ],
)
def test_the_last_number(text, expected):
    assert last_number(text) == expected


def test_what_follows_a_mark():
    assert after_last("a</think>b</think>c", "</think>") == "c"
    assert after_last("abc", "</think>") == "abc"
    assert after_last("abc", "") == "abc"


def test_the_normal_form_of_squad():
    assert squad_normal("The  U.S.A., an\tEagle-a 'Answer'") == "usa eaglea answer"


@pytest.mark.parametrize(
    ("options", "completion", "answer", "right"),
    [
        ({}, " a  b\n", "a b", True),
        ({"ignore_whitespace": False}, "a  b\n", "a b", False),
        ({"ignore_whitespace": False}, " a b\n", "a b", True),
        ({}, "A", "a", False),
        ({"ignore_case": True}, "STRASSE", "straße", True),
        ({}, "a.", "a", False),
        ({"ignore_punctuation": True}, "a.", "a", True),
        ({"extraction": "boxed"}, r"\boxed{a}", "a", True),
        ({"extraction": "boxed"}, "a", "a", False),
        ({"extraction": "tag"}, "<answer>a</answer>", "a", True),
        ({"extraction": "tag", "tag": "final"}, "<final>a</final>", "a", True),
        ({"extraction": "number"}, "so it is 1,000", "1000", True),
        ({"extraction": "number"}, "none", "1", False),
        ({"extraction": "number"}, "it is 4.0", "4", True),
        ({"extraction": "number"}, "it is -0.50", " -.5", True),
        ({"extraction": "number"}, "it is 4.01", "4", False),
        ({"extraction": "number"}, "it is 4", "4 apples", False),
        ({"extraction": "hashes"}, "#### 1000", "1,000", True),
        ({}, "4.0", "4", False),
        ({"extraction": "hashes"}, "1\n#### 2,000\n3", "2000", True),
        ({"extraction": "hashes"}, "#### 1\n#### 2", "2", True),
        ({"extraction": "hashes"}, "2", "2", False),
        ({"after": "</think>"}, "<think>b</think>a", "a", True),
        ({}, "", "", True),
    ],
)
def test_exact_match_reward(options, completion, answer, right):
    assert ExactMatch(**options)([completion], [answer]) == [float(right)]
    assert ExactMatch(**options, correct=5.0, incorrect=-5.0)([completion], [answer]) == [5.0 if right else -5.0]


THINK_GOOD = [
    "<think>a</think>b",
    "<think>\na\n</think>\nb",
    "<think>a <b> c</think>d",
    "<think></think>",
    "<think>a</think>b</think>",
]
THINK_BAD = ["<think>a", "a</think>b", " <think>a</think>b", "<think>a</think><think>b</think>", "a", "", "</think><thin"]


def test_think_format():
    assert ThinkFormat()(THINK_GOOD, [""] * len(THINK_GOOD)) == [1.0] * len(THINK_GOOD)
    assert ThinkFormat()(THINK_BAD, [""] * len(THINK_BAD)) == [0.0] * len(THINK_BAD)
    assert ThinkFormat(tag="t", correct=2.0, incorrect=-1.0)(["<t>a</t>", THINK_GOOD[0]], [""] * 2) == [2.0, -1.0]


def test_answer_format():
    good = ["<answer>a</answer>", "x <answer> a </answer> y"]
    bad = ["", "<answer></answer>", "<answer> </answer>", "</answer>a<answer>", "<answer>a</answer><answer>b</answer>", "<answer>a"]
    bad.append("<answer>a</answer></answer>")
    assert AnswerFormat()(good, [""] * 2) == [1.0, 1.0]
    assert AnswerFormat()(bad, [""] * len(bad)) == [0.0] * len(bad)
    assert AnswerFormat(tag="t", correct=2.0, incorrect=-1.0)(["<t>a</t>", good[0]], [""] * 2) == [2.0, -1.0]
    assert not has_answer_format("<answer" + "<answer>" * 100_000)


def test_tags_in_order():
    good = [
        "<think>a</think><answer>b</answer>",
        " <think>\na\n</think>\n\n<answer>b</answer>\n",
        "<think></think><answer></answer>",
    ]
    bad = [
        "",
        "<answer>b</answer><think>a</think>",
        "<think>a</think>",
        "x<think>a</think><answer>b</answer>",
        "<think>a</think>x<answer>b</answer>",
        "<think>a</think><answer>b</answer>x",
        "<think>a</think><think>a</think><answer>b</answer>",
        "<think>a<answer>b</answer></think>",
        "<think>a<answer></think>b</answer>",
    ]
    assert TagFormat()(good, [""] * 3) == [1.0] * 3
    assert TagFormat(incorrect=-1.0)(bad, [""] * len(bad)) == [-1.0] * len(bad)
    assert TagFormat(tags=("plan", "code", "end"))(["<plan>a</plan><code>b</code><end>c</end>"], [""]) == [1.0]
    lined = "<think>\na\n</think>\n<answer>\nb\n</answer>"
    assert has_tags_in_order(lined, newlines=True)
    for flat in (good[0], lined.replace("</think>\n", "</think>"), lined.replace("a\n", "a"), lined.replace(">\nb", ">b")):
        assert not has_tags_in_order(flat, newlines=True)
    assert not has_tags_in_order("<think>\n</think>\n<answer>\nb\n</answer>", newlines=True)
    for wrong in ((), ("a", "a")):
        with pytest.raises(ConfigError, match="tags"):
            TagFormat(tags=wrong)


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" (b). ", "B"),
        ("B.", "B"),
        ("B. Paris", "B"),
        ("B) Paris", "B"),
        ("(B) Paris", "B"),
        ("B: Paris", "B"),
        ("**B**", "B"),
        ("<think>A or C</think><answer>B</answer>", "B"),
        ("<answer>A</answer><answer>(C) Rome</answer>", "C"),
        ("<answer>none</answer> B", None),
        (r"Answer: A? No: \boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        ("The answer is B.", "B"),
        ("the answer is: (B)", "B"),
        ("Answer: A. Wait. Answer: **C**", "C"),
        ("correct option is D", "D"),
        ("I think that (A) is wrong and (B) is right", "B"),
        ("neither (A) nor **C.** is it", "C"),
        ("<answer>The answer is C</answer>", "C"),
        ("A cat sat", None),
        ("The answer is Berlin", None),
        ("answer: A's", None),
        ("I don't know", None),
        ("K", None),
        ("", None),
        ("ABAB" * 250_000, None),
        ("answer is " * 100_000, None),
    ],
)
def test_the_letter(completion, letter):
    assert chosen_letter(completion) == letter


def test_multiple_choice():
    reward = MultipleChoice(letters="AB12", correct=2.0, incorrect=-1.0)
    assert reward(["1", "(a)", "C", "<answer>2</answer>"], ["1", "A", "A", "2. two"]) == [2.0, 2.0, -1.0, 2.0]
    scores = reward.scores(["A"], ["Z"])
    assert scores.values == [-1.0]
    assert scores.metrics["verifier_error"].sum == 1.0
    assert MultipleChoice(tag="x")(["<x>A</x><answer>B</answer>", "<answer>B</answer> (A)"], ["A", "A"]) == [1.0, 1.0]
    for wrong in ("", "A B", "Aa"):
        with pytest.raises(ConfigError, match="letters"):
            MultipleChoice(letters=wrong)


def test_vqa_weighs_its_three_parts():
    completions = ["<think>x</think><answer>B</answer>", "B", "<answer>A</answer>"]
    scores = VQA(qa_accuracy=1.0, think_format=0.25, answer_format=0.5).scores(completions, ["B"] * 3)
    assert scores.values == [1.75, 1.0, 0.5]
    assert scores.metrics["qa_accuracy"] == Metric(2.0, 3.0)
    assert scores.metrics["think_format"] == Metric(1.0, 3.0)
    assert scores.metrics["answer_format"] == Metric(2.0, 3.0)
    assert scores.metrics["score"] == Metric(3.25, 3.0)
    assert VQA()(completions, ["B"] * 3) == [1.0, 1.0, 0.0]
    for name in ("qa_accuracy", "think_format", "answer_format"):
        with pytest.raises(ConfigError, match=name):
            VQA(**{name: -1.0})

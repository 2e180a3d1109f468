"""Rewards that read texts: numbers by hand first, then properties against the reference."""

import ast
import json
from dataclasses import FrozenInstanceError, fields, replace
from types import SimpleNamespace

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.rewards.choice import VQA, MultipleChoice
from rlinf.algorithms.rewards.code import Case, Code, last_program, passed, read_cases
from rlinf.algorithms.rewards.composite import Composite, Part, weighted
from rlinf.algorithms.rewards.format import AnswerFormat, TagFormat, ThinkFormat
from rlinf.algorithms.rewards.matching import (
    ExactMatch,
    SearchEM,
    SearchF1,
    SearchR1,
    exact_match_score,
    f1_score,
    substring_match_score,
)
from rlinf.algorithms.rewards.penalties import Overlong, Repetition, overlong_penalty, repetition
from rlinf.algorithms.rewards.scores import Scores
from rlinf.core.errors import ConfigError, RLinfError, UnknownName
from rlinf.core.metrics import Metric
from rlinf.core.registry import REWARDS, Registry, register_reward, register_sandbox
from rlinf.core.sandbox import ExecutionResult

quick = settings(max_examples=40)
MILLION = 1_000_000
words = st.lists(st.sampled_from(["a", "the", "Paris", "paris.", "in", "France", "é", "-", "an", "x"]), max_size=8).map(" ".join)
texts = st.one_of(words, st.text(max_size=30))


def test_exact_match_by_hand():
    assert exact_match_score("The Paris!", ["london", "paris"]) == 1.0
    assert exact_match_score("Paris, France", ["paris"]) == 0.0
    assert exact_match_score("", []) == 0.0
    assert substring_match_score("It is Paris, France", ["rome", "paris france"]) == 1.0
    assert substring_match_score("Paris", ["paris france"]) == 0.0
    assert substring_match_score("Paris", ["the"]) == 0.0


def test_f1_by_hand():
    # P = 2/3, R = 2/4: 2 · (1/3) / (7/6) = 4/7
    assert f1_score("one two two", ["two two three four"]) == pytest.approx(4 / 7)
    assert f1_score("one", ["two", "one two"]) == pytest.approx(2 / 3)
    assert f1_score("the", ["a"]) == 1.0
    assert f1_score("the", ["b"]) == 0.0
    assert f1_score("b", ["the"]) == 0.0
    assert f1_score("b", []) == 0.0


@quick
@given(prediction=texts, answers=st.lists(texts, max_size=3))
def test_search_scores_agree_with_the_reference(prediction, answers):
    assert exact_match_score(prediction, answers) == reference.exact_match_score(prediction, answers)
    assert substring_match_score(prediction, answers) == reference.substring_match_score(prediction, answers)
    assert f1_score(prediction, answers) == pytest.approx(reference.f1_score(prediction, answers), abs=1e-12)


@quick
@given(a=texts, b=texts)
def test_f1_is_symmetric_and_at_most_one(a, b):
    assert f1_score(a, [b]) == f1_score(b, [a])
    assert 0.0 <= f1_score(a, [b]) <= 1.0
    assert f1_score(a, [a]) == 1.0


def test_search_rewards():
    completions = ["<answer>Paris</answer>", "Paris", "<answer>in Paris</answer>", ""]
    assert SearchEM()(completions, ["paris"] * 4) == [1.0, 0.0, 0.0, 0.0]
    assert SearchEM(substring=True)(completions, ["paris"] * 4) == [1.0, 0.0, 1.0, 0.0]
    assert SearchEM(tag="")(completions, ["paris"] * 4) == [0.0, 1.0, 0.0, 0.0]
    assert SearchEM(answers="json")(completions, ['["rome", "in paris"]'] * 4) == [0.0, 0.0, 1.0, 0.0]
    assert SearchF1()(completions, ["paris"] * 4) == [1.0, 0.0, pytest.approx(2 / 3), 0.0]
    scores = SearchF1(answers="json").scores(completions[:3], ['"paris"', "[1]", "["])
    assert scores.metrics["verifier_error"] == Metric(3.0, 3.0)
    assert scores.values == [0.0] * 3


def test_too_many_answers_are_divided():
    many = "<answer>" * 10 + "paris</answer>"
    assert SearchR1()([many, "<answer>" + many], ["paris"] * 2) == [1.0, 0.25]
    closed = "<answer>x</answer>" + "</answer>" * 10 + "<answer>paris</answer>"
    assert SearchR1()([closed], ["paris"]) == [0.25]
    assert SearchR1(divisor=1.0)(["<answer>" + many], ["paris"]) == [1.0]
    reward = SearchR1(correct=2.0, format_score=0.1, max_tags=1, divisor=8.0, substring=True)
    assert reward(["<answer>in paris</answer>", "<answer>rome</answer>", "rome"], ["paris"] * 3) == [2.0, 0.1, 0.0]
    assert reward(["<answer>a</answer><answer>in paris</answer>"], ["paris"]) == [0.25]
    for wrong in ({"max_tags": 0}, {"divisor": 0.5}):
        with pytest.raises(ConfigError):
            SearchR1(**wrong)


def test_the_overlong_penalty_by_hand():
    """DAPO's own numbers: a limit of 20480 of which 4096 are the cache (arXiv:2503.14476, §4.1)."""
    length = torch.tensor([0, 16384, 16385, 18432, 20480, 20481, 30000])
    expected = torch.tensor([0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0, -1.0])
    penalty = overlong_penalty(length, max_length=20480, cache=4096)
    assert penalty.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert penalty.dtype == torch.float32
    assert overlong_penalty(length.double(), max_length=20480, cache=4096).dtype == torch.float64


@quick
@given(length=st.lists(st.integers(0, 60), max_size=8), max_length=st.integers(1, 50), data=st.data())
def test_the_overlong_penalty_agrees_with_the_reference(length, max_length, data):
    cache = data.draw(st.integers(1, max_length))
    x = torch.tensor(length, dtype=torch.float64)
    before = x.clone()
    found = overlong_penalty(x, max_length=max_length, cache=cache)
    assert found.tolist() == pytest.approx(reference.overlong_penalty(length, max_length=max_length, cache=cache), abs=1e-12)
    assert torch.equal(x, before)


def test_the_overlong_reward_counts_words_or_characters():
    assert Overlong(max_length=4, cache=2)(["a b", "a bcdef g", "a b c d e"], [""] * 3) == [0.0, -0.5, -1.0]
    assert Overlong(max_length=4, cache=2, unit="characters")(["é ", "a b", "abcde"], [""] * 3) == [0.0, -0.5, -1.0]
    for wrong in ({"max_length": 4, "cache": 0}, {"max_length": 4, "cache": 5}, {"max_length": 0, "cache": 1}):
        with pytest.raises(ConfigError, match=r"cache|max_length"):
            Overlong(**wrong)
        with pytest.raises(ConfigError):
            overlong_penalty(torch.ones(1), **wrong)
    assert Overlong(max_length=4, cache=4)(["", "a"], [""] * 2) == [0.0, -0.25]
    assert Overlong(max_length=1, cache=1)(["", "a"], [""] * 2) == [0.0, -1.0]


def test_repetition_by_hand():
    # "a b", "b a", "a b", "b a", "a b": two of five are new
    assert repetition("a B A b a b", ngram=2) == pytest.approx(0.6)
    assert repetition("a b", ngram=3) == 0.0
    assert repetition("a b c", ngram=3) == 0.0
    assert repetition("", ngram=1) == 0.0
    assert Repetition(ngram=1, max_penalty=-2.0)(["a a", "a b"], ["", ""]) == [-1.0, 0.0]
    assert Repetition()(["x " * 500_000], [""])[0] == pytest.approx(-1.0, abs=1e-5)
    for wrong in ({"ngram": 0}, {"max_penalty": 0.5}):
        with pytest.raises(ConfigError):
            Repetition(**wrong)


@quick
@given(text=st.text(alphabet="ab \n", max_size=40), ngram=st.integers(1, 4))
def test_repetition_agrees_with_the_reference(text, ngram):
    assert repetition(text, ngram=ngram) == pytest.approx(reference.repetition(text, ngram=ngram), abs=1e-12)


def of(values):
    return Scores(values=values, metrics={"score": Metric(sum(values), float(len(values)))})


@quick
@given(data=st.data(), count=st.integers(1, 5))
def test_the_weighted_sum_agrees_with_the_reference(data, count):
    numbers = st.floats(-10, 10)
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    parts = {name: (data.draw(numbers), data.draw(st.lists(numbers, min_size=count, max_size=count))) for name in names}
    found = weighted({name: (weight, of(values)) for name, (weight, values) in parts.items()})
    values, means = reference.weighted(parts)
    assert found.values == pytest.approx(values, abs=1e-9)
    assert {name: metric.mean for name, metric in found.metrics.items()} == pytest.approx(means, abs=1e-9)


class Fails:
    def __call__(self, completions, answers):
        raise RuntimeError


@pytest.fixture
def rewards(monkeypatch):
    """A registry of our own names, so that no other test sees them."""
    registry = Registry("reward", "rlinf.rewards")
    registry._scanned = True
    registry.register("exact_match", ExactMatch)
    registry.register("search_f1", SearchF1)
    registry.register("composite", Composite)
    registry.register("code", Code)
    monkeypatch.setattr("rlinf.algorithms.rewards.composite.REWARDS", registry)
    return registry


def test_a_composite_by_name(rewards):
    config = {
        "parts": {
            "right": {"reward": "Exact_Match", "params": {"extraction": "tag", "correct": 2.0}},
            "near": {"reward": "search_f1", "weight": 0.5},
            "nested": {"reward": "composite", "weight": 3.0, "params": {"parts": {"again": {"reward": "exact_match"}}}},
        }
    }
    reward = rewards.build("composite", config, place="reward")
    completions = ["<answer>in Paris</answer>", "<answer>Paris</answer>", "Paris"]
    scores = reward.scores(completions, ["Paris"] * 3)
    assert scores.values == [pytest.approx(1 / 3), 2.5, 3.0]
    assert scores.metrics["right"] == Metric(2.0, 3.0)
    assert scores.metrics["near"].mean == pytest.approx(5 / 9)
    assert scores.metrics["nested"] == Metric(1.0, 3.0)
    assert scores.metrics["nested/again"] == Metric(1.0, 3.0)
    assert scores.metrics["right/verifier_error"] == Metric(0.0, 3.0)
    assert scores.failures == {}
    assert reward(completions, ["Paris"] * 3) == scores.values


def test_a_part_that_fails_counts_zero_and_says_so():
    reward = Composite({"near": Part(SearchF1(answers="json"), weight=2.0), "same": Part(ExactMatch(), weight=0.5)})
    scores = reward.scores(["[", "[]", "<answer>a</answer>"], ["[", "[]", '["a"]'])
    assert scores.values == [0.5, 0.5, 2.0]
    assert scores.metrics["near/verifier_error"] == Metric(1.0, 3.0)
    assert scores.metrics["score"] == Metric(3.0, 3.0)
    assert list(scores.failures) == [0]
    assert scores.failures[0].startswith("near: JSONDecodeError")


def test_a_composite_that_can_not_be(rewards):
    def build(parts):
        return rewards.build("composite", {"parts": parts}, place="algorithm.reward")

    with pytest.raises(ConfigError, match=r"algorithm\.reward\.parts"):
        build({})
    with pytest.raises(
        UnknownName, match=r"algorithm\.reward\.parts\.a\.reward: no reward named 'exact_mach'\. Did you mean 'exact_match'"
    ):
        build({"a": {"reward": "exact_mach"}})
    with pytest.raises(ConfigError, match=r"algorithm\.reward\.parts\.a\.params\.corect: unknown key"):
        build({"a": {"reward": "exact_match", "params": {"corect": 1.0}}})
    with pytest.raises(ConfigError, match=r"parts\.score"):
        build({"score": {"reward": "exact_match"}})
    with pytest.raises(ConfigError, match="weight"):
        build({"a": {"reward": "exact_match", "weight": float("inf")}})
    with pytest.raises(ConfigError, match="params"):
        Part(ExactMatch(), params={"correct": 1.0})
    with pytest.raises(ConfigError, match="expected a name or a reward"):
        Part(5)


def ended(reason, stdout=""):
    """What a sandbox says of a program that printed something and ended for a reason."""
    status = {"ok": 0, "error": 1}.get(reason, -9)
    return ExecutionResult(reason=reason, status=status, stdout=stdout, stderr="", wall_s=0.0, cpu_s=0.0)


class SandboxDouble:
    """Stands in for a sandbox and executes nothing: it looks the outputs up that a test has written down."""

    languages = ("python", "c++")

    def __init__(self, outputs=None):
        self.outputs = outputs or {}
        self.asked = []

    def check(self, place):
        raise ConfigError(place, "looked at")

    def build(self):
        return self

    def close(self):
        pass

    def run(self, executions):
        self.asked.append(list(executions))
        return [self._run(execution) for execution in executions]

    def _run(self, execution):
        """The output that was written down, and what the last line of a case's code prints after it."""
        result = self.outputs.get(execution.stdin, ended("error"))
        last = execution.program.splitlines()[-1]
        said = ast.literal_eval(last.removeprefix("print")) if "assert" in execution.program else ""
        return replace(result, stdout=result.stdout + said) if result.ok else result


CASES = json.dumps([{"stdin": "1", "stdout": "a \nb\n\n"}, {"stdin": "2"}, {"stdin": "3", "stdout": "", "code": "assert f(1)"}])
PROGRAM = "text\n```python\nfirst\n```\n```json\n{}\n```\n```py3\nx\n```\n```Python title=x\nprint(1)\n```\nafter"


def test_the_last_program():
    assert last_program(PROGRAM, language="python") == "print(1)\n"
    assert last_program("```\na\n```", language="python") == "a\n"
    assert last_program("```python\na", language="python") is None
    assert last_program("print(1)", language="python") is None
    assert last_program("```c++\na\n```", language="c++") == "a\n"
    assert last_program("```" * 300_000, language="python") is None


def test_cases_are_data():
    assert read_cases(CASES) == [Case("1", "a \nb\n\n"), Case("2"), Case("3", "", "assert f(1)")]
    for wrong in ("[]", "{}", "[1]", '[{"stdin": 1}]', '[{"exec": "x"}]', "", "__import__('os')"):
        with pytest.raises(ValueError, match=r"expected a|Expecting value"):
            read_cases(wrong)


def test_a_case_passes():
    assert passed(Case("", "a \nb\n\n"), ended("ok", "a\nb  \n"))
    assert passed(Case("", None), ended("ok", "anything"))
    assert not passed(Case("", "a\nb"), ended("ok", "a b"))
    assert not passed(Case("", "a"), ended("ok", " a"))
    assert not passed(Case("", "a"), ended("error", "a"))
    assert not passed(Case("", "a"), ended("timeout", "a"))
    assert passed(Case("", ""), ended("ok", "\n"))


def test_code_needs_a_sandbox():
    with pytest.raises(ConfigError, match=r"sandbox: missing: a policy's code runs in a sandbox and nowhere else"):
        Code("")
    register_sandbox("double_of_tests", SandboxDouble())
    with pytest.raises(UnknownName, match="no sandbox named 'dokcer'"):
        Code("dokcer")
    with pytest.raises(ConfigError, match=r"sandbox: expected the name of a sandbox, or the configuration of one, found namespace"):
        Code(SimpleNamespace(languages=("python",)))
    with pytest.raises(ConfigError, match="case_time_s"):
        Code(SandboxDouble(), case_time_s=0.0)
    with pytest.raises(ConfigError, match=r"language: the sandbox runs python, c\+\+, found 'rust'"):
        Code(SandboxDouble(), language="rust")
    with pytest.raises(ConfigError, match=r"sandbox_params: given for a sandbox that is configured already"):
        Code(SandboxDouble(), {"level": "rlimits"})
    with pytest.raises(ConfigError, match=r"reward\.sandbox: looked at"):
        Code(SandboxDouble()).check("reward")


def test_code_is_judged_by_its_cases():
    double = SandboxDouble({"1": ended("ok", "a\nb"), "2": ended("ok")})
    assert Code(double).verify(PROGRAM, CASES) == 0.0
    assert Code(double, partial=True).verify(PROGRAM, CASES) == pytest.approx(2 / 3)
    double.outputs["3"] = ended("ok")
    assert Code(double, case_time_s=2.0, case_memory_mb=64).verify(PROGRAM, CASES) == 1.0
    first, _, last = double.asked[-1]
    assert first.program == "print(1)\n"
    assert (first.limits.wall_s, first.limits.memory_mb) == (2.0, 64)
    assert last.program.startswith("print(1)\n\nassert f(1)\nprint(")
    asked = len(double.asked)
    assert Code(double).verify("no program", CASES) == 0.0
    assert len(double.asked) == asked
    double.run = lambda executions: []
    with pytest.raises(RLinfError, match="expected what became of 3 cases"):
        Code(double).verify(PROGRAM, CASES)


def test_a_batch_of_code_is_asked_at_once():
    double = SandboxDouble({"1": ended("ok", "a\nb"), "2": ended("ok"), "3": ended("timeout")})
    two = json.dumps([{"stdin": "2"}, {"stdin": "2"}])
    scores = Code(double, partial=True).scores(["none", PROGRAM, PROGRAM, PROGRAM], [two, CASES, "[]", two], timeout_s=1.0)
    assert scores.values == pytest.approx([0.0, 2 / 3, 0.0, 1.0])
    assert [execution.stdin for execution in double.asked[0]] == ["1", "2", "3", "2", "2"]
    assert {execution.limits.wall_s for execution in double.asked[0]} == {1.0}
    assert len(double.asked) == 1
    assert list(scores.failures) == [2]


def test_a_sandbox_by_name():
    register_sandbox("double_of_tests_by_name", SandboxDouble())
    assert isinstance(Code("Double_of_Tests_by_name").built, SandboxDouble)


@pytest.mark.parametrize(
    "reward",
    [
        ExactMatch(),
        ThinkFormat(),
        AnswerFormat(),
        TagFormat(),
        MultipleChoice(),
        VQA(),
        SearchEM(),
        SearchF1(),
        SearchR1(),
        Repetition(),
    ],
)
def test_any_text_has_a_finite_score(reward):
    million = ["a" * MILLION, "<answer>" * 125_000, "\\boxed{" * 140_000, "é\ud800\0" * 300_000, "", "\n" * MILLION, "(A" * 500_000]
    scores = reward.scores(million, ["A"] * len(million))
    assert scores.failures == {}
    assert len(reward([], [])) == 0
    with pytest.raises(FrozenInstanceError):
        setattr(reward, fields(reward)[0].name, None)


def test_get_reward_class_by_any_case():
    from rlinf.algorithms.compat import get_reward_class

    name = "Reward_of_these_tests"
    register_reward(name, ExactMatch)
    assert get_reward_class(name.upper()) is ExactMatch
    assert REWARDS.build(name, {"correct": 3}, place="reward")(["a"], ["a"]) == [3.0]
    with pytest.raises(ConfigError, match=r"reward\.corect"):
        REWARDS.build(name, {"corect": 3.0}, place="reward")
    with pytest.raises(UnknownName, match=f"Did you mean '{name.lower()}'"):
        get_reward_class(name[:-1])

"""Stored test cases in the forms of public data sets. The programs are this file's own; only therefore may they run here."""

import json
import subprocess
import sys

import pytest

from rlinf.algorithms.rewards.code import Case, Code, read_cases
from rlinf.core.errors import UnknownName
from rlinf.core.registry import REWARDS
from rlinf.core.sandbox import ExecutionResult


class Interpreter:
    """Runs the programs of this file; it is no sandbox."""

    languages = ("python",)

    def check(self, place): ...

    def build(self):
        return self

    def close(self):
        pass

    def run(self, executions):
        return [self._run(execution) for execution in executions]

    def _run(self, execution):
        command = [sys.executable, "-I", "-S", "-c", execution.program]
        done = subprocess.run(command, input=execution.stdin, capture_output=True, text=True, timeout=60, check=False)
        reason = "error" if done.returncode else "ok"
        return ExecutionResult(reason=reason, status=done.returncode, stdout=done.stdout, stderr=done.stderr, wall_s=0.0, cpu_s=0.0)


ADDS = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
FUNCTION = "```python\ndef add(a, b):\n    return a + b\n```"
METHOD = "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```"
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"
EXITS = "```python\nimport os\ndef add(a, b):\n    return 0\nos._exit(0)\n```"
FORMS = {
    "apps": {"inputs": ["1 2", "3 4"], "outputs": ["3", "7\n"]},
    "livecodebench": [{"input": "1 2", "output": "3", "testtype": "stdin"}, {"input": "3 4", "output": "7"}],
    "apps_calls": {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, [7]]},
    "mbpp": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"],
    "mbpp_setup": {"test_list": ["assert add(one, 2) == 3"], "test_setup_code": "one = 1"},
    "humaneval": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"},
}


def test_forms_by_hand():
    assert read_cases(json.dumps(FORMS["apps"])) == [Case("1 2", "3"), Case("3 4", "7\n")]
    assert read_cases(json.dumps(FORMS["livecodebench"])) == [Case("1 2", "3"), Case("3 4", "7")]
    assert read_cases(json.dumps(FORMS["mbpp"])) == [Case(code="assert add(1, 2) == 3"), Case(code="assert add(3, 4) == 7")]
    assert read_cases(json.dumps(FORMS["mbpp_setup"])) == [Case(code="one = 1\nassert add(one, 2) == 3")]
    (check,) = read_cases(json.dumps(FORMS["humaneval"]))
    assert check.code.endswith("== 3\ncheck(add)")


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("apps", ADDS, FUNCTION),
        ("apps_calls", FUNCTION, WRONG),
        ("apps_calls", METHOD, EXITS),
        ("mbpp", FUNCTION, EXITS),
        ("humaneval", FUNCTION, WRONG),
    ],
)
def test_a_right_program_passes_and_a_wrong_one_does_not(form, right, wrong):
    reward, answer = Code(Interpreter()), json.dumps(FORMS[form])
    assert reward.verify(right, answer) == 1.0
    assert reward.verify(wrong, answer) == 0.0


def test_what_a_program_prints_before_its_assertions_still_counts():
    answer = json.dumps([{"stdin": "1 2", "stdout": "3", "code": "assert a == 1"}])
    assert Code(Interpreter()).verify(ADDS, answer) == 1.0
    assert Code(Interpreter()).verify(ADDS.replace("a + b", "a - b"), answer) == 0.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"inputs": ["1"], "outputs": []}, "as many outputs as inputs"),
        ({"inputs": [], "outputs": []}, "expected a JSON list of cases"),
        ({"fn_name": "os.system('x')", "inputs": [[1]], "outputs": [1]}, "name of a function"),
        ({"fn_name": "f", "inputs": [1], "outputs": [1]}, "list of arguments"),
        ({"inputs": [1], "outputs": ["1"]}, "'stdin': 1"),
        ({"test_list": "assert True"}, "list of assertions"),
        ({"test": 1, "entry_point": "f"}, "text in 'test'"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "testtype 'stdin'"),
        ({"tests": []}, "found keys"),
        (3, "expected a JSON list of cases"),
    ],
)
def test_other_answers_are_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        read_cases(json.dumps(answer))


def test_names_of_other_systems_lead_here():
    with pytest.raises(UnknownName, match=r"no reward named 'code_offline'\. Stored test cases.*the reward 'code'"):
        REWARDS.get("code_offline", place="reward.reward_type")


class Counting(Interpreter):
    """Keeps what it runs."""

    def __init__(self):
        self.seen = []

    def run(self, executions):
        self.seen += executions
        return Interpreter.run(self, executions)


def test_cases_that_run_together_fail_alone_and_the_same_program_runs_once():
    cases = json.dumps(["assert f(2) == 4", "assert f(3) == 6", "assert g(1) == 1", "assert f(", "assert f(0) == 0"])
    double = "```python\ndef f(x): return 2 * x\n```"
    square = "```python\ndef f(x): return x * x\n```"
    ends = "```python\nimport sys\nsys.exit(0)\n```"
    scores = {}
    for together in (False, True):
        interpreter = Counting()
        reward = Code(interpreter, partial=True, together=together)
        scores[together] = reward([double, square, double, ends, "no program"], [cases] * 5)
        assert len(interpreter.seen) == (3 if together else 15), "one program for all cases, or one for each; the same one once"
    assert scores[True] == scores[False] == [0.6, 0.4, 0.6, 0.0, 0.0]


def test_cases_with_inputs_never_run_together():
    interpreter = Counting()
    reward = Code(interpreter, together=True)
    assert reward(["```python\nprint(7)\n```"], [json.dumps([{"stdout": "7"}, "assert True"])]) == [1.0]
    assert len(interpreter.seen) == 2

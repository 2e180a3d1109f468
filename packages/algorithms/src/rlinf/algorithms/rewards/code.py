"""Code: whether a program does what its cases ask. What a policy wrote runs in a sandbox, and nowhere else.

The sandbox is somebody else's, by its name: `process` is that of rlinf-envs; a package provides another one by an entry point of
the group `rlinf.sandboxes`, a script by `rlinf.core.registry.register_sandbox`.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from rlinf.algorithms.rewards.pool import VerifierPool
from rlinf.algorithms.rewards.reward import PairReward, Pairs
from rlinf.algorithms.rewards.scores import Outcome, Scores, tally
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.core.registry import SANDBOXES
from rlinf.core.sandbox import Execution, ExecutionLimits, ExecutionResult, SandboxConfig, shared_sandbox


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a program must do."""

    stdin: str = ""
    """What it reads."""
    stdout: str | None = None
    """What it must print, but for white space at line ends and at the end; None if it must only end well."""
    code: str = ""
    """What is run after it in the same program, such as assertions."""


_KINDS: Final[Mapping[str, Any]] = {"stdin": str, "stdout": (str, type(None)), "code": str}
_SHAPES: Final = (
    "expected a JSON list of cases (objects with stdin, stdout, code; or with input, output; or assertions), or an object with "
    "inputs and outputs, with test_list, or with test and entry_point"
)


def read_cases(answer: str) -> list[Case]:
    """The cases of an answer, in JSON.

    | who stores it so | what is read |
    |---|---|
    | ours | `[{"stdin": "1 2", "stdout": "3", "code": "assert …"}, …]`, each key optional |
    | LiveCodeBench | `[{"input": "1 2", "output": "3", "testtype": "stdin"}, …]` |
    | APPS, TACO, verl's `prime_code` | `{"inputs": ["1 2"], "outputs": ["3"]}`; with `fn_name`, arguments and what is returned |
    | MBPP | `["assert f(1) == 2", …]`, or `{"test_list": […], "test_setup_code": …}` |
    | HumanEval | `{"test": "def check(candidate): …", "entry_point": "f"}` |

    Assertions, functions and checks are those of Python.

    Raises:
        ValueError: it is anything else, or holds no case.
    """
    found: Any = json.loads(answer)
    cases = _of_object(cast("dict[str, Any]", found)) if isinstance(found, dict) else _of_list(found)
    if not cases:
        raise ValueError(f"{_SHAPES}; found {answer:.100}")
    return cases


def _of_list(found: Any) -> list[Case]:
    if not isinstance(found, list):
        raise ValueError(f"{_SHAPES}; found {found!r:.100}")
    return [Case(code=entry) if isinstance(entry, str) else _case(entry) for entry in cast("list[Any]", found)]


def _case(entry: Any) -> Case:
    if not isinstance(entry, dict):
        raise ValueError(f"expected a case with keys {list(_KINDS)}, found {entry!r:.100}")
    fields = cast("dict[str, Any]", entry)
    if "input" in fields and "output" in fields:
        if fields.get("testtype", "stdin") != "stdin":
            raise ValueError(
                f"expected testtype 'stdin', found {fields['testtype']!r:.100}; store the call as code: assert f(…) == …"
            )
        fields = {"stdin": fields["input"], "stdout": fields["output"]}
    for key, value in fields.items():
        if key not in _KINDS or not isinstance(value, _KINDS[key]):
            raise ValueError(f"expected a case with keys {list(_KINDS)}, found '{key}': {value!r:.100}")
    return Case(**fields)


def _of_object(found: Mapping[str, Any]) -> list[Case]:
    if "inputs" in found and "outputs" in found:
        return _of_columns(found)
    if "test_list" in found:
        setup = _text(found, "test_setup_code")
        return [Case(code=f"{setup}\n{line}".lstrip("\n")) for line in _texts(found, "test_list")]
    if "test" in found and "entry_point" in found:
        return [Case(code=f"{_text(found, 'test')}\ncheck({_name(found['entry_point'])})")]
    raise ValueError(f"{_SHAPES}; found keys {list(found)!r:.100}")


def _of_columns(found: Mapping[str, Any]) -> list[Case]:
    inputs, outputs = _list(found["inputs"]), _list(found["outputs"])
    if inputs is None or outputs is None or len(inputs) != len(outputs):
        told = f"{found['inputs']!r:.50} and {found['outputs']!r:.50}"
        raise ValueError(f"expected as many outputs as inputs, in two lists, found {told}")
    pairs = list(zip(inputs, outputs, strict=True))
    if found.get("fn_name") is None:
        return [_case({"stdin": given, "stdout": expected}) for given, expected in pairs]
    return [Case(code=_call(_name(found["fn_name"]), given, expected)) for given, expected in pairs]


def _call(name: str, given: Any, expected: Any) -> str:
    """An assertion that a function, or a method of LeetCode's `Solution`, returns what it should.

    APPS wraps what is returned into a list of one element, so that either of both passes.
    """
    if not isinstance(given, list):
        raise ValueError(f"expected a list of arguments of {name}, found {given!r:.100}")
    items = _list(expected) or []
    either = [expected, items[0]] if len(items) == 1 else [expected]
    call = f"_returned = (globals().get({name!r}) or Solution().{name})(*{given!r})"
    # JSON has no tuples, so that one that is returned is compared as a list.
    return f"{call}\nassert (list(_returned) if isinstance(_returned, tuple) else _returned) in {either!r}"


def _list(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise ValueError(f"expected the name of a function, found {value!r:.100}")
    return value


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"expected text in '{key}', found {value!r:.100}")
    return value


def _texts(found: Mapping[str, Any], key: str) -> Sequence[str]:
    value = found[key]
    if not isinstance(value, list) or not all(isinstance(line, str) for line in cast("list[Any]", value)):
        raise ValueError(f"expected a list of assertions in '{key}', found {value!r:.100}")
    return cast("list[str]", value)


# By CommonMark a fence may be indented by three spaces.
_BLOCK: Final = re.compile(r"^ {0,3}```[ \t]*([\w+-]*)[^\n]*\n(.*?)^ {0,3}```[ \t]*$", re.MULTILINE | re.DOTALL)


def last_program(completion: str, *, language: str) -> str | None:
    """The last fenced block of `language`, or of no language; None if there is none.

    Args:
        completion: what the policy wrote.
        language: what the block must name, in any case, such as "python".
    """
    blocks = [body for named, body in _BLOCK.findall(completion) if named.casefold() in ("", language.casefold())]
    return blocks[-1] if blocks else None


def witnessed(cases: Sequence[Case], word: str) -> list[Case]:
    """Cases whose code says at its end that it was reached: a program that exits before its assertions has not passed them.

    Args:
        cases: in Python.
        word: what is printed on a line of its own; the program must not be able to guess it.
    """
    # On a line of its own, even behind output that does not end one.
    return [replace(case, code=f"{case.code}\nprint({chr(10) + word!r})") if case.code else case for case in cases]


def without_witness(case: Case, result: ExecutionResult, word: str) -> ExecutionResult:
    """What the program itself printed; an execution that has failed if the code of its case was not reached."""
    if not case.code:
        return result
    before, found, after = result.stdout.rpartition(f"\n{word}")
    if found and not after.strip():
        return replace(result, stdout=before)
    return replace(result, stdout="", reason="error" if result.ok else result.reason)


def passed(case: Case, result: ExecutionResult) -> bool:
    """Whether a program did what a case asks."""
    return result.ok and (case.stdout is None or _lines(result.stdout) == _lines(case.stdout))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(frozen=True, slots=True)
class Code(PairReward):
    """Whether the last program of a completion passes its cases in a sandbox, by name: `code`.

    The answer is a JSON list of cases, `[{"stdin": "1 2", "stdout": "3"}, …]`, or has another form that `read_cases` knows, such as
    APPS' inputs and outputs, MBPP's assertions and HumanEval's check. The cases are stored with the problem: no service is asked.
    All cases of a batch are given to the sandbox at once, which runs as many at a time as it has workers. The same program with the
    same cases runs once in a batch.
    """

    sandbox: str | SandboxConfig = "process"
    """A registered sandbox, or the configuration of one; nothing else runs a policy's code."""
    sandbox_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parameters of the sandbox, if it is chosen by name, such as `level`, the least that it must confine programs."""
    language: str = "python"
    """What the program's fence must name, if it names anything; one that the sandbox runs."""
    partial: bool = False
    """Whether the score is the share of cases that pass; else all must."""
    together: bool = False
    """Whether cases that are code alone run one after the other in one process, which takes a fraction of the time: an exception
    fails its own case, but what a case leaves behind is there for the next one, and `case_time_s` bounds all of them."""
    case_time_s: float = 5.0
    """Seconds that one case may take in the sandbox."""
    case_memory_mb: int = 512
    """MiB that one case may take in the sandbox."""
    built: Any = field(init=False, repr=False, compare=False)
    """The configuration of the sandbox."""

    def __post_init__(self) -> None:
        expect_range("case_time_s", self.case_time_s, 0.0, 86400.0, open_low=True)
        expect_range("case_memory_mb", self.case_memory_mb, 1, 2**20)
        built = self.sandbox
        if isinstance(built, str):
            if not built or not SANDBOXES.names():
                remedy = f"Install rlinf-envs, or register one. Installed: {', '.join(SANDBOXES.names()) or 'none'}."
                raise ConfigError("sandbox", "missing: a policy's code runs in a sandbox and nowhere else", remedy)
            SANDBOXES.get(built, place="sandbox")
            built = SANDBOXES.build(built, self.sandbox_params, place="sandbox_params")
        elif self.sandbox_params:
            raise ConfigError("sandbox_params", "given for a sandbox that is configured already", "Give its name instead.")
        if not isinstance(built, SandboxConfig):  # what YAML has is not checked against a protocol
            raise ConfigError("sandbox", f"expected the name of a sandbox, or the configuration of one, found {built!r}")
        object.__setattr__(self, "built", built)
        if self.language.casefold() not in self.built.languages:
            found = f"the sandbox runs {', '.join(self.built.languages)}, found '{self.language}'"
            raise ConfigError("language", found, "Choose a sandbox that runs it.")

    def check(self, place: str) -> None:
        """Refuses a machine on which the sandbox can't confine programs as far as it must."""
        self.built.check(f"{place}.sandbox_params" if isinstance(self.sandbox, str) else f"{place}.sandbox")

    def verify(self, completion: str, answer: str) -> float:
        """1 if all cases pass, else 0; their share if `partial`; 0 without a program.

        Raises:
            ValueError: `answer` holds no cases.
        """
        question = self._question(completion, answer)
        return 0.0 if question is None else self._judged(question, shared_sandbox(self.built).run(question.executions(self, None)))

    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """The scores of a batch, in which a program that fails, or takes what it may not, is wrong.

        Args:
            pairs: what the policy wrote, and the cases of each.
            timeout_s: seconds that one case may take; None is `case_time_s`.
            pool: of no use here: the sandbox has processes of its own.

        Raises:
            RLinfError: the sandbox failed.
        """
        found: list[Outcome | _Question] = []
        asked: dict[tuple[str, str], _Question] = {}
        for completion, answer in pairs:
            try:
                question = self._question(completion, answer)
                found.append(Outcome(0.0) if question is None else asked.setdefault((question.program, answer), question))
            except ValueError as error:
                found.append(Outcome(None, error_text(error)[:500]))
        scores = self._run(list(asked.values()), timeout_s)
        outcomes = [entry if isinstance(entry, Outcome) else Outcome(scores[entry.word]) for entry in found]
        return tally(outcomes, failure_score=self.failure_score)

    def _run(self, questions: Sequence[_Question], timeout_s: float | None) -> dict[str, float]:
        """The score of each question, by its word."""
        asked = [question.executions(self, timeout_s) for question in questions]
        results = iter(shared_sandbox(self.built).run([execution for executions in asked for execution in executions]))
        return {
            question.word: self._judged(question, [*itertools.islice(results, len(executions))])
            for question, executions in zip(questions, asked, strict=True)
        }

    def _question(self, completion: str, answer: str) -> _Question | None:
        """What is asked of the sandbox about a completion; None if there is no program in it."""
        cases = read_cases(answer)
        program = last_program(completion, language=self.language)
        # Random for each pair: a program that knew the word could print it and exit before its assertions.
        return None if program is None else _Question(program, cases, secrets.token_hex(16))

    def _judged(self, question: _Question, results: Sequence[ExecutionResult]) -> float:
        together, cases = question.together(self), question.cases
        if len(results) != (1 if together else len(cases)):
            raise RLinfError("sandbox", f"expected what became of {len(cases)} cases, found {len(results)} results")
        if together:
            right = sum(f"{question.word} {number}" in _lines(results[0].stdout) for number in range(len(cases)))
        else:
            told = [without_witness(case, result, question.word) for case, result in zip(cases, results, strict=True)]
            right = sum(passed(case, result) for case, result in zip(cases, told, strict=True))
        return right / len(cases) if self.partial else float(right == len(cases))


@dataclass(frozen=True, slots=True)
class _Question:
    """One program, and what it is asked."""

    program: str
    cases: list[Case]
    word: str
    """What each case prints at its end."""

    def together(self, reward: Code) -> bool:
        """Whether all cases run in one process."""
        return reward.together and all(case.code and not case.stdin and case.stdout is None for case in self.cases)

    def executions(self, reward: Code, timeout_s: float | None) -> list[Execution]:
        """One for each case, or for all; the code of a case, which is Python, stands behind the program."""
        limits = ExecutionLimits(wall_s=timeout_s or reward.case_time_s, memory_mb=reward.case_memory_mb)
        if self.together(reward):
            return [Execution(program="\n".join([self.program, *map(self._guarded, range(len(self.cases)))]), limits=limits)]
        return [
            Execution(program=f"{self.program}\n{case.code}" if case.code else self.program, stdin=case.stdin, limits=limits)
            for case in witnessed(self.cases, self.word)
        ]

    def _guarded(self, number: int) -> str:
        """A case that says with its number that its end was reached, and whose exceptions are its own.

        Compiled within the guard: a case that is no Python fails alone.
        """
        guarded = f"exec(compile({self.cases[number].code!r}, 'case {number}', 'exec'), globals())"
        return f"try:\n {guarded}\n print({chr(10) + self.word + ' ' + str(number)!r})\nexcept Exception: pass"

"""Code: whether a program does what its cases ask. What a policy wrote runs in a sandbox, and nowhere else.

The sandbox is somebody else's: a package provides it by an entry point of the group `rlinf.sandboxes`, a script by
`register_sandbox`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

from rlinf.algorithms.checks import expect_range
from rlinf.algorithms.rewards.reward import IsolatedReward
from rlinf.core.errors import ConfigError
from rlinf.core.registry import Registry


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


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may take."""

    time_s: float = 5.0
    """Seconds."""
    memory_mb: int = 512
    """MiB."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a sandbox says of one case."""

    exit_code: int
    """0 if the program ended well."""
    stdout: str = ""
    """What it printed."""
    timed_out: bool = False
    """Whether its time was over."""


class Sandbox(Protocol):
    """Runs programs that nobody trusts: without network, without our files, in bounded time and memory."""

    def run(self, program: str, cases: Sequence[Case], limits: Limits) -> Sequence[Run]:
        """What became of each case; an exception only if the sandbox itself failed."""
        ...


SANDBOXES: Final[Registry[Any]] = Registry("sandbox", "rlinf.sandboxes")
register_sandbox = SANDBOXES.register
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
    return [replace(case, code=f"{case.code}\nprint({chr(10) + word!r})") if case.code else case for case in cases]


def without_witness(case: Case, run: Run, word: str) -> Run:
    """What the program itself printed; a run that has failed if the code of its case was not reached."""
    if not case.code:
        return run
    before, found, after = run.stdout.rpartition(f"\n{word}")
    return replace(run, stdout=before) if found and not after.strip() else replace(run, stdout="", exit_code=run.exit_code or 1)


def passed(case: Case, run: Run) -> bool:
    """Whether a program did what a case asks."""
    if run.exit_code != 0 or run.timed_out:
        return False
    return case.stdout is None or _lines(run.stdout) == _lines(case.stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(frozen=True, slots=True)
class Code(IsolatedReward):
    """Whether the last program of a completion passes its cases in a sandbox, by name: `code`.

    The answer is a JSON list of cases, `[{"stdin": "1 2", "stdout": "3"}, …]`, or has another form that `read_cases` knows, such as
    APPS' inputs and outputs, MBPP's assertions and HumanEval's check. The cases are stored with the problem: no service is asked.
    """

    sandbox: str | Sandbox = ""
    """A registered sandbox, or one; there is no default, since nothing else may run a policy's code."""
    sandbox_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parameters of the sandbox, if it is chosen by name."""
    language: str = "python"
    """What the program's fence must name, if it names anything."""
    partial: bool = False
    """Whether the score is the share of cases that pass; else all must."""
    case_time_s: float = 5.0
    """Seconds that one case may take in the sandbox."""
    case_memory_mb: int = 512
    """MiB that one case may take in the sandbox."""
    built: Any = field(init=False, repr=False, compare=False)
    """The sandbox itself."""

    def __post_init__(self) -> None:
        IsolatedReward.__post_init__(self)
        expect_range("case_time_s", self.case_time_s, 0.0, 86400.0, open_low=True)
        expect_range("case_memory_mb", self.case_memory_mb, 1, 2**30)
        if self.sandbox == "":
            remedy = f"Name a registered one or pass one. Installed: {', '.join(SANDBOXES.names()) or 'none'}."
            raise ConfigError("sandbox", "missing: a policy's code runs in a sandbox and nowhere else", remedy)
        built = self.sandbox
        if isinstance(built, str):
            SANDBOXES.get(built, place="sandbox")
            built = SANDBOXES.build(built, self.sandbox_params, place="sandbox_params")
        object.__setattr__(self, "built", built)

    def verify(self, completion: str, answer: str) -> float:
        """1 if all cases pass, else 0; their share if `partial`; 0 without a program.

        Raises:
            ValueError: `answer` holds no cases, or the sandbox didn't say what became of each.
        """
        cases = read_cases(answer)
        program = last_program(completion, language=self.language)
        if program is None:
            return 0.0
        # Random for each pair: a program that knew the word could print it and exit before its assertions.
        word, python = secrets.token_hex(16), self.language.casefold() == "python"
        asked = witnessed(cases, word) if python else cases
        runs: Sequence[Run] = self.built.run(program, asked, Limits(self.case_time_s, self.case_memory_mb))
        if len(runs) != len(cases):
            raise ValueError(f"expected what became of {len(cases)} cases, the sandbox told of {len(runs)}")
        told = [without_witness(case, run, word) if python else run for case, run in zip(cases, runs, strict=True)]
        share = sum(passed(case, run) for case, run in zip(cases, told, strict=True)) / len(cases)
        return share if self.partial else float(share == 1.0)

"""Stored test cases of programs: what data sets of programming problems ship, as one list of cases.

They are data. Nothing here runs anything; a sandbox runs a program on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast


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
    inputs, outputs = found["inputs"], found["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(cast("Any", inputs)) != len(cast("Any", outputs)):
        raise ValueError(f"expected as many outputs as inputs, in two lists, found {inputs!r:.50} and {outputs!r:.50}")
    pairs = list(zip(cast("list[Any]", inputs), cast("list[Any]", outputs), strict=True))
    if found.get("fn_name") is None:
        return [_case({"stdin": given, "stdout": expected}) for given, expected in pairs]
    return [Case(code=_call(_name(found["fn_name"]), given, expected)) for given, expected in pairs]


def _call(name: str, given: Any, expected: Any) -> str:
    """An assertion that a function, or a method of LeetCode's `Solution`, returns what it should.

    APPS wraps what is returned into a list of one element, so that either of both passes.
    """
    if not isinstance(given, list):
        raise ValueError(f"expected a list of arguments of {name}, found {given!r:.100}")
    wrapped = isinstance(expected, list) and len(cast("Any", expected)) == 1
    either: list[Any] = [expected, expected[0]] if wrapped else [expected]
    call = f"_returned = (globals().get({name!r}) or Solution().{name})(*{given!r})"
    return f"{call}\nassert (list(_returned) if isinstance(_returned, tuple) else _returned) in {either!r}"


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

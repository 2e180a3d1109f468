"""How a contract is examined: line by line, and what a line says when it doesn't hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from rlinf.core.errors import ContractError

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def run_checks(contract: T, checks: Mapping[str, Callable[[T], None]], report: Callable[[str], None] | None) -> list[str]:
    """Examines all lines in turn and returns them; the first that fails ends it.

    Args:
        contract: what each check is called with.
        checks: by the line that it examines.
        report: called with each line as soon as its check has passed.
    """
    for sentence, check in checks.items():
        check(contract)
        if report is not None:
            report(sentence)
    return list(checks)


def expect(condition: bool, place: str, problem: str, remedy: str = "") -> None:
    """Raises a ContractError unless the condition holds."""
    if not condition:
        raise ContractError(place, problem, remedy)


def expect_equal(found: object, expected: object, place: str) -> None:
    """Raises a ContractError that names both unless they are equal."""
    expect(found == expected, place, f"expected {expected!r}, found {found!r}")


def expect_raised(kind: type[E], call: Callable[[], object], place: str) -> E:
    """The error of that kind that a call ends with; a ContractError if it returns."""
    try:
        found = call()
    except kind as error:
        return error
    raise ContractError(place, f"expected {kind.__name__}, found {found!r}")

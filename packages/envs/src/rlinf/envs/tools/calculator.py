"""A calculator: arithmetic that is parsed, never evaluated as Python."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rlinf.core.agents import Tool, ToolError

Number = int | float
_LONGEST: Final = 500
"""Characters of an expression."""
_LARGEST: Final = 1e300
"""Beyond which a result is refused; integers would otherwise grow without bound."""
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {ast.UAdd: lambda x: x, ast.USub: lambda x: -x}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"abs": abs, "max": max, "min": min, "round": round, "sqrt": math.sqrt}


def calculate(expression: str) -> str:
    """Works out an arithmetic expression.

    Args:
        expression: numbers, + - * / // % **, parentheses, and the functions abs, max, min, round and sqrt.

    Returns:
        The value; a whole number without a decimal point, others with twelve digits.

    Raises:
        ToolError: it is no arithmetic, has no value, or one that is too large.
    """
    if len(expression) > _LONGEST:
        raise ToolError(f"expected at most {_LONGEST} characters, found {len(expression)}")
    try:
        parsed = ast.parse(expression.strip(), mode="eval")
    # Nesting that is too deep ends in one of the last two.
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolError(f"{expression!r} is no arithmetic expression") from None
    try:
        value = _value(parsed.body)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ToolError(f"{expression!r} has no value: {error}") from None
    except RecursionError:
        raise ToolError("the expression is nested too deeply") from None
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else format(value, ".12g")


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            raise ToolError(f"{node.value} is no number")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in _UNARY:
            return _UNARY[type(operation)](_value(operand))
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return _power(_value(base), _value(exponent))
        case ast.BinOp(op=operation, left=left, right=right) if type(operation) in _BINARY:
            return _bounded(_BINARY[type(operation)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
        case _:
            raise ToolError(f"'{ast.unparse(node)[:80]}' is no arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    # Before it is computed: 9**9**9 would take for ever.
    if base and abs(exponent) * math.log10(abs(base) or 1) > math.log10(_LARGEST):
        raise ToolError("the result is too large")
    return _bounded(base**exponent)


def _bounded(value: Any) -> Number:
    if isinstance(value, complex) or not isinstance(value, int | float):
        raise ToolError("the result is no real number")
    if not abs(value) <= _LARGEST:
        raise ToolError("the result is too large")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculator:
    """The calculator by name: `agent.tools: [{type: calculator}]`."""

    name: str = "calculator"
    """By which the model calls it."""

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def build(self) -> Tool:
        """The tool; it takes microseconds, so that it needs no thread."""
        return Tool.of(calculate, name=self.name, inline=True)

"""The options of a command line."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError, did_you_mean

_UNKNOWN = "unrecognized arguments: "


class ArgumentParser(argparse.ArgumentParser):
    """The parser of every command: an option that is mistyped is refused with the nearest one, and none may be abbreviated.

    Args:
        prog: the command; None is the name of the script.
        description: what it does.
        epilog: what stands below its options.
    """

    def __init__(self, prog: str | None = None, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Shows the usage and the fault, and ends with 2."""
        options = sorted({option for option in _options(self) if option.startswith("--")})
        words = message.removeprefix(_UNKNOWN).split()
        mistyped = [word.partition("=")[0] for word in words if word.startswith("-")] if message.startswith(_UNKNOWN) else []
        hint = f". {did_you_mean(mistyped[0], options, label='Options')}" if mistyped else ""
        super().error(f"{message}{hint}")


def whole(least: int) -> Callable[[str], int]:
    """The `type` of an option that takes a whole number, at least so large."""
    return lambda text: int(_number(int, text, least, math.inf, open_low=False))


def real(low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> Callable[[str], float]:
    """The `type` of an option that takes a finite number, in the range that `rlinf.core.config.expect_range` describes."""
    return lambda text: _number(float, text, low, high, open_low=open_low)


def reals(low: float = -math.inf, high: float = math.inf) -> Callable[[str], float | list[float]]:
    """The same for one number, or for several with commas between them, which are a list."""

    def read(text: str) -> float | list[float]:
        first, *others = [_number(float, part, low, high, open_low=False) for part in text.split(",")]
        return [first, *others] if others else first

    return read


def key_value(text: str, *, place: str, example: str) -> tuple[str, Any]:
    """A parameter of a command line and its value, JSON; what is none is a text, so that names need no quotes.

    Args:
        text: `key=value`.
        place: the command, for the message.
        example: such a text, for the message.

    Raises:
        ConfigError: it is no `key=value`.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(place, f"expected key=value, found '{text}'", f"Write for instance {example}.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _number(kind: type[int] | type[float], text: str, low: float, high: float, *, open_low: bool) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        wanted = "a whole number" if kind is int else "a finite number"
        raise argparse.ArgumentTypeError(f"expected {wanted}, found '{text}'")
    try:
        expect_range("", value, low, high, open_low=open_low)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.problem) from error
    return value


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Those of its subcommands, too: it is the command above them that finds an argument left over."""
    # argparse shows them nowhere else.
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield from action.option_strings
        choices = cast("object", action.choices)
        for each in cast("dict[str, object]", choices).values() if isinstance(choices, dict) else ():
            if isinstance(each, argparse.ArgumentParser):
                yield from _options(each)

"""The range of a hyper-parameter, checked by the dataclass that has it."""

from __future__ import annotations

import math

from rlinf.core.errors import ConfigError

LONGEST_S = 1e9
"""The longest wait that a configuration may ask for, 31 years: more does not fit into the clocks of the operating system."""


def expect_range(
    place: str,
    value: float | None,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    remedy: str = "",
) -> None:
    """Refuses a number outside [low, high], and one that is none; None passes.

    Args:
        place: the key, for the message.
        value: what was configured.
        low: the least value.
        high: the greatest value.
        open_low: whether `low` itself is refused.
        open_high: whether `high` itself is refused.
        remedy: what to do, for the message.

    Raises:
        ConfigError: the message has the range and the value.
    """
    if value is None:
        return
    try:
        # Written so that NaN, which compares False with everything, is refused.
        above = value > low if open_low else value >= low
        below = value < high if open_high else value <= high
    except TypeError as error:
        raise ConfigError(place, f"expected a number, found {value!r:.80}", remedy) from error
    if above and below:
        return
    if high == math.inf:
        wanted = f"{'more than' if open_low else 'at least'} {low:g}{' and finite' if open_high else ''}"
    else:
        wanted = f"a value in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    raise ConfigError(place, f"expected {wanted}, found {value:g}", remedy)


def expect_at_least(place: str, value: float | None, least: float, remedy: str = "") -> None:
    """`expect_range` with a lower bound alone."""
    expect_range(place, value, least, remedy=remedy)


def expect_seconds(place: str, value: float | None) -> None:
    """Refuses what is no time to wait for: more than 0 s and at most `LONGEST_S`; None passes.

    Raises:
        ConfigError: the message has the range and the value.
    """
    expect_range(place, value, 0.0, LONGEST_S, open_low=True)

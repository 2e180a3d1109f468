"""Memory sizes as people write them: `80GiB`, `1.5 TB`, `512MiB`."""

from __future__ import annotations

import re

from rlinf.core.errors import ConfigError, did_you_mean

UNITS = {"B": 1} | {f"{p}{'iB' if base == 1024 else 'B'}": base**i for base in (1000, 1024) for i, p in enumerate("KMGTP", 1)}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_memory(text: str, *, place: str = "memory") -> int:
    """The bytes that a text names.

    Args:
        text: a number and a unit; `GiB` is 2³⁰ bytes, `GB` is 10⁹.
        place: the dotted path of the value, for messages.

    Raises:
        ConfigError: the text is not a size above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(place, f"expected a size such as '80GiB', found '{text}'")
    units = {unit.lower(): size for unit, size in UNITS.items()}
    size = units.get(match[2].lower())
    if size is None:
        raise ConfigError(place, f"'{text}' has no unit that is known", did_you_mean(match[2], list(UNITS), label="Units"))
    found = int(float(match[1]) * size)
    if found < 1:
        raise ConfigError(place, f"expected a size above 0, found '{text}'")
    return found


def memory_text(value: float) -> str:
    """Bytes with three digits."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B" if value else "-"

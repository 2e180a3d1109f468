"""Whether there is room for the prompts of tasks: one rule for every policy that reads them."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf.core.errors import ConfigError


def expect_room(lengths: Mapping[str, int], most: int, key: str, *, beside: str = "") -> None:
    """Refuses tasks whose prompts are longer than a policy has room for; none is cut.

    Args:
        lengths: tokens of the prompt of each task.
        most: for how many there is room.
        key: the parameter that says so.
        beside: what has tokens that are not counted yet, if anything.

    Raises:
        ConfigError: with the longest one, and how much room it needs.
    """
    longest = max(lengths, key=lengths.__getitem__, default="")
    needed = lengths.get(longest, 0)
    if needed > most:
        counted = f"{needed} tokens and those of {beside}" if beside else f"{needed} tokens"
        remedy = f"Set it to more than {needed}." if beside else f"Set it to {needed} or more."
        raise ConfigError(key, f"the prompt of '{longest}' has {counted}, there is room for {most}", remedy)

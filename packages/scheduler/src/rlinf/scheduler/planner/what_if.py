"""Changes of a traced run: other devices, other speeds, other ways to work together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.scheduler.planner.layout import Slot
from rlinf.scheduler.planner.simulator import Options
from rlinf.scheduler.planner.workload import Workload

PLACE = "--set"
_OF_COMPONENT = ("devices", "parallel", "speed", "items")
_OF_RUN = ("chunks", "stages", "max_lag")


@dataclass(frozen=True, slots=True)
class Situation:
    """A workload, where it is, and how its parts work together."""

    workload: Workload
    layout: dict[str, Slot]
    options: Options


def changed(situation: Situation, changes: Sequence[str]) -> Situation:
    """The situation after changes, in their order.

    Args:
        situation: what was.
        changes: `component.devices=4` (from where it begins now) or `=0-3`, `component.parallel=2`, `component.speed=2` (twice as
            fast), `component.items=2` (twice as many), or `chunks=2`, `stages=2`, `max_lag=1`.

    Raises:
        ConfigError: a change is not one of these, or names a component that is not there.
    """
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(PLACE, f"expected KEY=VALUE, found '{text}'", "Write it as COMPONENT.devices=4, or max_lag=1.")
        name, dot, field = key.rpartition(".")
        known = _OF_COMPONENT if dot else _OF_RUN
        if field not in known:
            keys = [f"{each}.{of}" for each in situation.workload.components for of in _OF_COMPONENT] + list(_OF_RUN)
            raise ConfigError(PLACE, f"'{key}' can't be changed", did_you_mean(key, keys))
        if not dot:
            situation = replace(situation, options=replace(situation.options, **{field: _whole(key, value)}))
        elif name not in situation.workload.components:
            raise ConfigError(PLACE, f"no component '{name}'", did_you_mean(name, list(situation.workload.components)))
        elif field in ("devices", "parallel"):
            slot = _slot(key, situation.layout[name], field, value)
            situation = replace(situation, layout={**situation.layout, name: slot})
        else:
            situation = replace(situation, workload=_scaled(key, situation.workload, name, field, value))
    return situation


def _slot(key: str, slot: Slot, field: str, value: str) -> Slot:
    if field == "parallel":
        return replace(slot, parallel=_whole(key, value))
    first, dash, last = value.partition("-")
    if not dash:
        return replace(slot, count=_whole(key, value))
    start, end = _whole(key, first, least=0), _whole(key, last, least=0)
    if end < start:
        raise ConfigError(PLACE, f"in '{key}={value}' the range runs backwards", f"Write {last}-{first}.")
    return replace(slot, start=start, count=end - start + 1)


def _scaled(key: str, workload: Workload, name: str, field: str, value: str) -> Workload:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ConfigError(PLACE, f"'{key}' expects a positive number, found '{value}'")
    if field == "speed":
        return workload.slowed(name, 1 / factor)
    return workload.replaced(name, items=workload.components[name].items * factor)


def _whole(key: str, value: str, *, least: int = 1) -> int:
    least = 0 if key == "max_lag" else least
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise ConfigError(PLACE, f"'{key}' expects a whole number of at least {least}, found '{value}'")
    return int(value)

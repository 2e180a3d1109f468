"""What the configurations of vLLM and SGLang refuse alike; light to import."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlinf.core.config import expect_seconds
from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.installing import install_command, is_there
from rlinf.core.registry import require_modules


def refuse_sizes(config: Any, *, counts: Iterable[str], lengths: Iterable[str], part: str) -> None:
    """Refuses numbers that make no sense.

    Args:
        config: the configuration.
        counts: its fields that are at least 1.
        lengths: its fields that are at least 2, or None.
        part: its field that is a part of a GPU's memory.

    Raises:
        ConfigError: the message names the field.
    """
    for name in counts:
        if getattr(config, name) < 1:
            raise ConfigError(name, f"expected at least 1, found {getattr(config, name)}")
    for name in ("timeout_s", "start_timeout_s"):
        expect_seconds(name, getattr(config, name))
    for name in lengths:
        if getattr(config, name) is not None and getattr(config, name) < 2:
            raise ConfigError(name, f"expected at least 2, found {getattr(config, name)}")
    if not 0 < getattr(config, part) <= 1:
        raise ConfigError(part, f"expected more than 0 and at most 1, found {getattr(config, part):g}")


def refuse_machine(engine: str, place: str, *, base_url: str | None, python: str | None, served: bool) -> None:
    """Refuses a machine without an engine, or without what talks to it.

    Args:
        engine: its module, and its extra.
        place: of the configuration.
        base_url: a server that runs already.
        python: of another environment, that has the engine.
        served: whether it is spoken to over HTTP.

    Raises:
        ConfigError: there is no such Python.
        MissingExtra: something is not installed; the message says how to.
    """
    if python is not None and not Path(python).is_file():
        raise ConfigError(f"{place}.python", f"no file '{python}'", f"Point to the Python of an environment with {engine}.")
    cpu = f"an environment of its own, from requirements-{engine}-cpu.txt of rlinf-engines"
    if not base_url and not python and not is_there(engine):
        remedy = f"For a GPU: {install_command(f'rlinf-engines[{engine}]')}. For a CPU: {cpu}."
        raise MissingExtra(place, f"the module '{engine}' is not installed", remedy)
    if served:
        require_modules("aiohttp", place=place, extra="rlinf-engines[served]")

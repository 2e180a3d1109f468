"""Where an exception of an environment came from, which each layer around it completes by what it alone knows.

one environment raises ─► which one (vector environment) ─► step, task (`EpisodeStatistics`) ─► episode (whoever plays)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

_ATTRIBUTE: Final = "__rlinf_env_place__"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvPlace:
    """An environment of several, and how far it had come in its episode."""

    env: int | None = None
    """Its number in the vector environment; None if nobody knows, such as of what one simulation steps together."""
    step: int | None = None
    """Control steps of its episode before the one that failed; None in a reset, or if nobody knows."""
    task: str | None = None
    """What it plays; None where there is only one task, or if nobody knows."""
    episode: int | None = None
    """The number of its episode; None if nobody knows."""

    def __str__(self) -> str:
        of = "its episode" if self.episode is None else f"episode {self.episode}"
        parts = [
            None if self.env is None else f"environment {self.env}",
            f"step {self.step} of {of}" if self.step is not None else None if self.episode is None else of,
            None if self.task is None else f"task {self.task}",
        ]
        return ", ".join(part for part in parts if part)


def env_place(error: BaseException) -> EnvPlace:
    """What is known of where an exception came from."""
    return vars(error).get(_ATTRIBUTE, EnvPlace())


def locate(error: BaseException, place: EnvPlace) -> None:
    """Completes what is known of where an exception came from; what was known stays."""
    known = env_place(error)
    found = {field.name: getattr(known, field.name) for field in fields(EnvPlace)}
    merged = EnvPlace(**{name: getattr(place, name) if value is None else value for name, value in found.items()})
    setattr(error, _ATTRIBUTE, merged)

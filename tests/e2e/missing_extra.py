"""An environment whose extra is not installed; named in configurations as `missing_extra:NeedsNoSuchModule`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.core.data import EnvSpec
from rlinf.core.registry import require_modules


@dataclass(frozen=True)
class NeedsNoSuchModule:
    """Asks for a module that nobody has."""

    task_id: str = ""

    def check(self, place: str) -> None:
        require_modules("no_such_module", place=place, extra="rlinf-envs[no-such]")

    def make(self, num_envs: int, **options: Any) -> Any:
        raise AssertionError("never built")

    def describe(self, env: Any) -> EnvSpec:
        raise AssertionError("never built")

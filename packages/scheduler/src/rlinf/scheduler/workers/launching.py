"""What a group can be launched with, beside a name and a placement."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from rlinf.core.config import expect_at_least
from rlinf.core.errors import ConfigError, UnknownName, did_you_mean
from rlinf.core.worker import Worker
from rlinf.scheduler.transport.transport import DRIVER
from rlinf.scheduler.workers.loops import LIMIT

_ABSENT = {
    "catch_system_failure": "A failure of any kind is raised where the group is called; a `Supervisor` says what happens next.",
    "disable_distributed_log": "Workers write files only if `cluster.log_dir` says where.",
    "node_group": "Name it in the placement strategy.",
}
"""What users of other versions write here, and what takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of `Cluster.launch`."""

    max_concurrency: int | None = None
    """How many calls of a worker may be under way at a time. Of a class with async methods, async calls; None allows 64 of them. Of
    one without, calls in threads of their own; None runs one after the other."""
    isolate_gpu: bool = True
    """A process sees its own accelerators only. If not, it sees all of its node, and `LOCAL_RANK` is the number of its first."""

    @classmethod
    def read(cls, options: Mapping[str, Any], place: str) -> LaunchOptions:
        """The options, checked.

        Raises:
            UnknownName: there is no such option; the message says what takes its place.
            ConfigError: a value can't be used.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                hint = _ABSENT.get(name) or did_you_mean(name, known, label="Options")
                raise UnknownName(f"launch of {place}", f"no option '{name}'", hint)
        made = cls(**options)
        expect_at_least(f"launch of {place}: max_concurrency", made.max_concurrency, 1)
        return made

    def threads(self, worker: type[Any]) -> int:
        """How many threads run the calls of a worker that are not async."""
        return 1 if has_async(worker) else self.max_concurrency or 1

    def awaited(self, worker: type[Any]) -> int:
        """How many async calls may be under way; 0 if the class has no async method."""
        return (self.max_concurrency or LIMIT) if has_async(worker) else 0


# A name is part of the path of a socket, which has room for some hundred characters (`short_folder`).
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,39}")


def check_name(name: str) -> None:
    """Refuses what can't be the name of a group.

    Raises:
        ConfigError: it isn't one.
    """
    if not isinstance(cast("object", name), str) or not _NAME.fullmatch(name) or name == DRIVER:
        remedy = f"Use up to 40 letters, digits, '_', '-' and '.'; '{DRIVER}' is taken."
        raise ConfigError(f"group '{name}'", "this can't be the name of a group", remedy)


def is_async(worker: type[Any], method: str) -> bool:
    """Whether a method is async."""
    return inspect.iscoroutinefunction(getattr(worker, method, None))


def has_async(worker: type[Any]) -> bool:
    """Whether any public method is async, of those that `Worker` itself does not have."""
    return any(is_async(worker, name) for name in dir(worker) if not name.startswith("_") and not hasattr(Worker, name))

"""`Steps`: where the steps of a traced run ended.

A step ends when the heaviest method of those who feed nobody, such as the trainer, has ended on all ranks. The first step warms up
and is left out, as is what follows the last.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rlinf.core.errors import ConfigError
from rlinf.scheduler.trace.flow import SECOND, Flow
from rlinf.scheduler.trace.reading import STEP_ENDS, about
from rlinf.scheduler.trace.spans import Span
from rlinf.scheduler.transport.transport import DRIVER

LIGHT = 0.01
"""The share of all work below which a method says nothing of how many steps there were."""
FEWEST = 3
"""Steps that a trace must have: one warms up, and of two others the spread is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a run, counted from the second one."""

    group: str
    """Whose method ends a step."""
    ends: tuple[int, ...]
    """When each step ended, the first one's end first; nanoseconds."""

    @classmethod
    def find(cls, recorded: Iterable[Span], *, source: str | Path) -> Steps:
        """The steps of a trace.

        Args:
            recorded: its spans.
            source: the trace itself; a predicted one says when its steps end.

        Raises:
            ConfigError: there are fewer than three steps.
        """
        ended = [span for span in recorded if span.status == "ok" and span.group != DRIVER]
        calls = [span for span in ended if span.kind == "call" and not span.name.startswith("_")]
        known = tuple(about(source).get(STEP_ENDS, ()))
        if known:
            return cls(group=max(calls, key=lambda span: (span.end <= known[-1], span.end)).group, ends=known)
        feeding = {edge.producer for edge in Flow.from_spans(ended).edges if edge.kind == "channel"}
        last = _last_method(calls, feeding, source)
        ranks: dict[int, list[int]] = {}
        for span in sorted(calls, key=lambda span: span.start):
            if (span.group, span.name) == last:
                ranks.setdefault(span.rank, []).append(span.end)
        # A run that was cut off may have had fewer calls on some ranks: a step counts if all have ended it.
        return cls(group=last[0], ends=tuple(max(ends) for ends in zip(*ranks.values(), strict=False)))

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each step took."""
        return tuple((after - before) / SECOND for before, after in pairwise(self.ends))

    def of(self, span: Span) -> int | None:
        """The step in which a span ended; None in the first, and after the last."""
        at = bisect.bisect_left(self.ends, span.end) - 1
        return at if 0 <= at < len(self.ends) - 1 else None


def _last_method(calls: Sequence[Span], feeding: Collection[str | None], source: str | Path) -> tuple[str, str]:
    methods: dict[tuple[str, str], list[Span]] = {}
    for span in calls:
        methods.setdefault((span.group, span.name), []).append(span)
    counts = {key: len(found) // len({span.rank for span in found}) for key, found in methods.items()}
    work = {key: sum(span.worked for span in found) for key, found in methods.items()}
    heavy = [key for key in methods if work[key] >= LIGHT * sum(work.values())]
    most = max((counts[key] for key in heavy), default=0)
    if most < FEWEST:
        problem = f"found {most} steps, expected at least {FEWEST}: the first warms up"
        raise ConfigError(f"trace '{source}'", problem, "Trace a longer run, such as runner.max_steps=5.")
    steady = [key for key in heavy if 2 * counts[key] >= most]
    return max([key for key in steady if key[0] not in feeding] or steady, key=lambda key: work[key])

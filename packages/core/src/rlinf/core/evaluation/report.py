"""The results of a whole work-list, how sure they are, and the file that they are kept in."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from rlinf.core.config import read
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.evaluation.intervals import Difference, Mean, Rate
from rlinf.core.evaluation.protocol import EpisodeProtocol, EvalProtocol
from rlinf.core.evaluation.results import EpisodeKey, EpisodeResult, ProblemResult, TaskId

R = TypeVar("R", bound=EpisodeResult | ProblemResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table of results."""

    name: str
    """The task, or what all of them are called together."""
    n: int
    """How many episodes or problems."""
    judged: Rate | Mean
    """The metric, with its interval."""
    means: Mapping[str, float]
    """The mean of each number."""


def mean_values(values: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean of each number over the results that know it; empty without results."""
    columns: dict[str, list[float]] = {}
    for row in values:
        for name, value in row.items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    # An exact sum does not depend on the order of the results.
    return {name: math.fsum(column) / len(column) for name, column in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport(Generic[R]):
    """The results of a whole work-list, beside the protocol that made them.

    Raises:
        RLinfError: an entry of the work-list is missing, there twice, or not of it; the message says which.
    """

    protocol: EvalProtocol
    results: tuple[R, ...]
    """In the order of the work-list, in whatever order they are given."""
    names: Mapping[int, str] = field(default_factory=dict[int, str], compare=False)
    """What tasks are called that results name by number, as far as that is known; for people."""

    def __post_init__(self) -> None:
        place: dict[Any, int] = {key: number for number, key in enumerate(self.protocol.work_list())}
        found = Counter(result.key for result in self.results)
        missing = [number for key, number in place.items() if key not in found]
        twice = [place.get(key, _number(key)) for key, count in found.items() if count > 1]
        other = [_number(key) for key in found if key not in place]
        if missing or twice or other:
            told = f"missing {missing[:5]}, twice {sorted(twice)[:5]}, not of this protocol {sorted(other)[:5]}"
            problem = f"{len(place)} {self.protocol.result.counted}: {told}"
            raise RLinfError("evaluation", problem, "Each entry of the work-list must be played exactly once.")
        ordered = sorted(self.results, key=lambda result: place[result.key])
        object.__setattr__(self, "results", tuple(ordered))

    @property
    def means(self) -> dict[str, float]:
        """The mean of each number, such as `success_once`, `return` or `accuracy`; those that the task knows."""
        return mean_values(map(self.protocol.values, self.results))

    @property
    def metric(self) -> str:
        """Which of the means a policy is judged by."""
        return self.protocol.metric(self.means)

    @property
    def total(self) -> Rate | None:
        """The success rate over everything; None where the task knows no success."""
        metric = self.metric
        values = [self.protocol.values(result).get(metric) for result in self.results]
        return None if metric == "return" else Rate.of(value for value in values if value is not None)

    @property
    def _by_task(self) -> dict[TaskId | None, list[R]]:
        """For each task in the order of the work-list, or of their numbers where seeds drew them; under None if there is one."""
        found: dict[TaskId | None, list[R]] = {}
        for result in self.results:
            found.setdefault(result.task, []).append(result)
        numbers = [task for task in found if isinstance(task, int)]
        # Where seeds drew the tasks, the order in which they came up says nothing.
        drawn = isinstance(self.protocol, EpisodeProtocol) and not self.protocol.tasks and len(numbers) == len(found)
        return {task: found[task] for task in sorted(numbers)} if drawn else found

    @property
    def rows(self) -> tuple[Row, ...]:
        """A line for each task, in the order of the work-list or of their numbers, and one for all; of one task only that."""
        by_task = self._by_task if len(self._by_task) > 1 else {}
        return (*(self._row(self._label(task), results) for task, results in by_task.items()), self._row("all", self.results))

    def _label(self, task: TaskId | None) -> str:
        return f"{task} {self.names[task]}" if isinstance(task, int) and task in self.names else str(task)

    def _row(self, name: str, results: Sequence[R]) -> Row:
        metric, found = self.metric, [self.protocol.values(result) for result in results]
        values = [value for row in found if (value := row.get(metric)) is not None]
        judged = Mean.of(values) if metric == "return" else Rate.of(values)
        return Row(name=name, n=len(results), judged=judged, means=mean_values(found))

    def compared(self, other: EvalReport[R]) -> Difference:
        """How much better this policy did than another one, episode by episode, in the metric by which it is judged.

        Raises:
            RLinfError: the other one was measured under another protocol.
        """
        if other.protocol.hash != self.protocol.hash:
            problem = f"expected two reports of one protocol, found {self.protocol.hash} and {other.protocol.hash}"
            raise RLinfError("evaluation", problem, "Measure the second policy with --protocol of the first.")
        metric = self.metric
        own, others = ([report.protocol.values(result).get(metric) for result in report.results] for report in (self, other))
        # Both are in the order of the work-list.
        return Difference.of((a, b) for a, b in zip(own, others, strict=True) if a is not None and b is not None)

    def scalars(self, prefix: str = "eval/") -> dict[str, float]:
        """The means as metrics are named, with the number of results."""
        return {f"{prefix}{name}": mean for name, mean in {**self.means, self.protocol.result.counted: len(self.results)}.items()}

    @property
    def brief(self) -> str:
        """The metric in two words."""
        value = self.means[self.metric]
        return f"{self.metric} {value:.2f}" if self.total is None else f"{self.metric} {value:.0%}"

    def __str__(self) -> str:
        total = self.total
        told = f"{self.rows[-1].judged}" if total is None else f"{total}"
        return f"{self.metric} {told} of {len(self.results)} {self.protocol.result.counted} (protocol {self.protocol.hash})"

    def to_dict(self) -> dict[str, Any]:
        """Protocol, rates and every result, for JSON."""
        total = self.total
        judged = {"return": self.rows[-1].judged.to_dict()} if total is None else {"success": total.to_dict()}
        of = {"metric": self.metric, **judged, "means": self.means}
        found = [(task, self._row(str(task), results)) for task, results in self._by_task.items() if task is not None]
        named: dict[TaskId, dict[str, str]] = {task: {"name": name} for task, name in self.names.items()}
        tasks = [{"task": task, **named.get(task, {}), **row.judged.to_dict(), "means": dict(row.means)} for task, row in found]
        rows = [dataclasses.asdict(result) for result in self.results]
        return {**of, "tasks": tasks, "protocol": self.protocol.to_dict(), "results": rows}

    def write(self, path: Path, beside: Mapping[str, Any] | None = None) -> None:
        """Writes JSON, one line for each result; its folder is made.

        Args:
            path: the file.
            beside: what else it is to say, such as whose policy it was; comes first.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {**(beside or {}), **self.to_dict()}
        # Apart from the rest: `indent` would give every number of a result a line of its own.
        rows = ",\n  ".join(json.dumps(row) for row in found.pop("results"))
        head = json.dumps(found, indent=1, default=str).removesuffix("\n}")
        path.write_text(f'{head},\n "results": [\n  {rows}\n ]\n}}\n', encoding="utf-8")

    @staticmethod
    def load(path: Path) -> EvalReport[Any]:
        """What `write` wrote, checked: the hash is that of the fields, and nothing is missing.

        Raises:
            ConfigError: not such a file.
        """
        try:
            data = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
            protocol, rows = data["protocol"], cast("list[Any]", data["results"])
            names = {task["task"]: str(task["name"]) for task in data.get("tasks", ()) if "name" in task}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                str(path), f"not the report of an evaluation ({error!r})", "Write one with EvalReport.write."
            ) from error
        stated = EvalProtocol.from_dict(protocol, place=f"{path}.protocol")
        results = [read(stated.result, row, place=f"{path}.results[{i}]") for i, row in enumerate(rows)]
        return EvalReport(protocol=stated, results=tuple(results), names=names)


def _number(key: EpisodeKey | int | None) -> int:
    return -1 if key is None else key if isinstance(key, int) else key.number

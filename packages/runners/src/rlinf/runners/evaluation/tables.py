"""The results of evaluations as a table: a row for each task, and what is made of several protocols together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf.core.evaluation import Difference, EvalReport, Rate, Row, canonical_hash
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reporting.summary import versions


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """The reports of a suite, by the name of each entry."""

    reports: Mapping[str, EvalReport[Any]]

    @property
    def hash(self) -> str:
        """That of the protocols with their names; two tables are comparable only if it is the same."""
        return canonical_hash({name: report.protocol.hash for name, report in self.reports.items()})

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all entries, and one over all episodes where every entry is judged by the same rate."""
        rows: list[Row] = []
        for name, report in self.reports.items():
            # The last row of a report is the one over all tasks.
            *tasks, whole = report.rows
            rows += [replace(row, name=f"{name}/{row.name}") for row in tasks]
            rows.append(replace(whole, name=name))
        judged = [report.total for report in self.reports.values()]
        if len(judged) > 1 and len({report.metric for report in self.reports.values()}) == 1 and None not in judged:
            rows.append(self._over_all())
        return tuple(rows)

    def _over_all(self) -> Row:
        results = [report.protocol.values(result) for report in self.reports.values() for result in report.results]
        metric = next(iter(self.reports.values())).metric
        rate = Rate.of(value for values in results if (value := values.get(metric)) is not None)
        return Row(name="all", n=rate.n, judged=rate, means={metric: rate.rate})

    def write(self, policy: EvaluatedPolicy) -> Path:
        """Writes the table beside the folders of the protocols, each of which has its own `summary.json`."""
        entries = {
            name: {"protocol": report.protocol.hash, "summary": str(policy.folder(report.protocol).summary)}
            for name, report in self.reports.items()
        }
        rows = [{"name": row.name, **row.judged.to_dict(), "means": dict(row.means)} for row in self.rows]
        content = {"hash": self.hash, **policy.described, "versions": versions(), "rows": rows, "entries": entries}
        return _written(policy.parent / f"suite_{self.hash}.json", content)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """Policies under one protocol: how each differs from the first, episode by episode."""

    measured: Sequence[tuple[EvaluatedPolicy, EvalReport[Any]]]
    """At least two."""

    @property
    def _differences(self) -> dict[str, Difference]:
        """How much better each further policy did than the first, by its name."""
        (_, first), *others = self.measured
        return {policy.name: report.compared(first) for policy, report in others}

    def __str__(self) -> str:
        (base, first), *_ = self.measured
        rows = table([replace(report.rows[-1], name=policy.name) for policy, report in self.measured], first.metric)
        rate = first.total is not None
        told = [f"{name} against {base.name}: {found.told(rate=rate)}" for name, found in self._differences.items()]
        return "\n".join([f"comparison (protocol {first.protocol.hash})", rows, *told])

    def write(self) -> Path:
        """Writes the differences beside the results of the first policy; another comparison has another file."""
        (base, first), *_ = self.measured
        digest = canonical_hash([first.protocol.hash, *(policy.name for policy, _ in self.measured)])
        summaries = {policy.name: str(policy.folder(report.protocol).summary) for policy, report in self.measured}
        content = {
            "protocol": first.protocol.hash,
            "metric": first.metric,
            "against": base.name,
            "differences": {name: found.to_dict() for name, found in self._differences.items()},
            "summaries": summaries,
            "command": base.command,
            "versions": versions(),
        }
        return _written(base.parent / f"comparison_{digest}.json", content)


def table(rows: Sequence[Row], metric: str) -> str:
    """Rows as lines of text, one column for each number that any of them has; what a policy is judged by first."""
    others = list(dict.fromkeys(name for row in rows for name in row.means if name != metric))
    lines = [["", "n", metric, *others]]
    for row in rows:
        lines.append([row.name, str(row.n), str(row.judged), *(_cell(row.means.get(name)) for name in others)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(_padded(line, widths)).rstrip() for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _written(file: Path, content: Mapping[str, Any]) -> Path:
    file.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    return file

"""What the policy wrote, for people: a file of all samples, and a few on the screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from rlinf.runners.reasoning.generation.admission import GroupReport


def write_transcripts(path: Path, step: int, kind: str, reports: Sequence[GroupReport]) -> None:
    """Appends the groups whose reports carry texts, one JSON object each.

    Args:
        path: the file.
        step: the iteration.
        kind: "train" or "eval".
        reports: all groups.
    """
    with path.open("a", encoding="utf-8") as file:
        for report in _told(reports):
            responses = [
                {"text": r.text, "reward": r.reward, "right": r.success, "tokens": r.tokens, "finish": r.finish}
                for r in report.responses
            ]
            head = {"step": step, "kind": kind, "problem": report.problem, "prompt": report.prompt, "answer": report.answer}
            file.write(json.dumps({**head, "responses": responses}, ensure_ascii=False) + "\n")


def shown(reports: Sequence[GroupReport], count: int) -> list[str]:
    """A few groups as text: the prompt, the first response, and whether it is right."""
    lines: list[str] = []
    for report in list(_told(reports))[:count]:
        first = report.responses[0]
        mark = "right" if first.success else f"wrong, {report.answer} is right"
        lines.append(f"  {_one_line(report.prompt)} → {_one_line(first.text)}  ({mark})")
    return lines


def _told(reports: Sequence[GroupReport]) -> Iterator[GroupReport]:
    return (report for report in sorted(reports, key=attrgetter("group")) if report.prompt is not None)


def _one_line(text: str | None) -> str:
    joined = " ⏎ ".join((text or "").strip().splitlines())
    return joined if len(joined) <= 160 else f"{joined[:160]}…"

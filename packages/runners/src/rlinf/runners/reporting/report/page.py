"""The report of one or several runs as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlinf.runners.reporting.report.curves import legend, panel, short
from rlinf.runners.reporting.report.measured_run import ENV_STEPS, MeasuredRun, Points

FILMS_MIB = 40
"""How much of films a page holds; browsers become slow with more."""
MOST_FAILURES = 6
MOST_PROBLEMS = 20
GROUPS = ("eval", "env", "rollout", "train", "data", "off_policy", "time")
"""The order of the groups of curves; others follow."""
OPEN = ("eval", "env", "rollout")
"""Which groups are shown at once; the others unfold."""


def write_page(folders: Sequence[Path], target: Path) -> Path:
    """Writes the report of runs, beside each other if there are several.

    Args:
        folders: those of the runs.
        target: the file; replaced if it exists.

    Raises:
        ConfigError: one is not the folder of a run.
        OSError: the file can't be written.
    """
    runs = [MeasuredRun.read(folder) for folder in folders]
    sections: tuple[Callable[[Sequence[MeasuredRun]], str], ...] = (_results, _curves, _times, _films, _transcripts, _settings)
    template = files("rlinf.runners.reporting.report").joinpath("report.html").read_text(encoding="utf-8")
    title = escape(" · ".join(dict.fromkeys(run.folder.path.name for run in runs)))
    page = template.replace("@TITLE@", title).replace("@BODY@", "\n".join(section(runs) for section in sections))
    target.write_text(page, encoding="utf-8")
    return target


def _results(runs: Sequence[MeasuredRun]) -> str:
    rows = [["run", "result", "of", "protocol", "iterations", "environment steps", "wall-clock", "folder"]]
    for run in runs:
        found = run.summary or {}
        steps = [row[ENV_STEPS] for row in run.rows if ENV_STEPS in row]
        rows.append(
            [
                run.name,
                _result(found),
                _counted(found),
                str(found.get("protocol", {}).get("hash", "–")),
                f"{run.rows[-1]['step']:.0f}" if run.rows else "0",
                f"{max(steps):,.0f}" if steps else "–",
                f"{found['time/wall_s']:.0f} s" if "time/wall_s" in found else "–",
                str(run.folder.path),
            ]
        )
    summaries = [run.summary for run in runs if run.summary is not None]
    protocols = {json.dumps(_comparable(found["protocol"]), sort_keys=True) for found in summaries if "protocol" in found}
    warning = "<p class='warning'>They were evaluated by different protocols: not comparable.</p>" if len(protocols) > 1 else ""
    return f"<h2>Results</h2>{_table(rows)}{warning}"


def _comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol without its seeds: runs that differ in nothing else are samples of one thing."""
    return {key: value for key, value in protocol.items() if key not in ("hash", "seed", "seeds")}


def _result(found: Mapping[str, Any]) -> str:
    """The last evaluation with its interval; other numbers of a run that evaluates nothing."""
    if not found:
        return "not ended"
    metric = found.get("metric")
    if metric is None:
        numbers = {name: value for name, value in found.items() if isinstance(value, float) and not name.startswith("time/")}
        return "\n".join(f"{name} {short(value)}" for name, value in numbers.items())
    value, name = found[f"eval/{metric}"], str(metric)
    interval = found.get(f"eval/{metric}_ci95") or found.get(name, {}).get("t_95")
    # A rate has a count of what succeeded, a mean has not.
    percent = f"eval/{metric}_ci95" in found
    told = [f"{each:.1%}" if percent else short(each) for each in (value, *(interval or ()))]
    return f"{name} {told[0]}" + (f"\n95 %: {told[1]} to {told[2]}" if interval else "")


def _counted(found: Mapping[str, Any]) -> str:
    counts = {name: found[f"eval/{name}"] for name in ("episodes", "problems") if f"eval/{name}" in found}
    return ", ".join(f"{count:,.0f} {name}" for name, count in counts.items())


def _curves(runs: Sequence[MeasuredRun]) -> str:
    along = ENV_STEPS if all(ENV_STEPS in run.scalars for run in runs) else "step"
    axis = "environment step" if along == ENV_STEPS else "iteration"
    grouped: dict[str, dict[str, list[Points]]] = {name: {} for name in GROUPS}
    for name in dict.fromkeys(name for run in runs for name in run.scalars):
        lines = [run.points(name, along) for run in runs]
        if name != along and any(lines):
            grouped.setdefault(name.partition("/")[0], {})[name] = lines
    parts = [f"<h2>Curves</h2><p>{legend([run.name for run in runs])}<span class='axis'>along: {axis}s</span></p>"]
    for group, found in grouped.items():
        # A curve that never moves shows no more than its number.
        still = {
            name: lines[0][0][1] for name, lines in found.items() if len({y for line in lines for _, y in line}) == 1 and lines[0]
        }
        pictures = [panel(name, lines, axis=axis) for name, lines in found.items() if name not in still]
        constant = ", ".join(f"{escape(name)} {short(value)}" for name, value in still.items())
        if found:
            shown = f"<div class='panels'>{''.join(pictures)}</div>" + (
                f"<p class='axis'>Constant: {constant}</p>" if constant else ""
            )
            unfolded = " open" if group in OPEN else ""
            parts.append(f"<details{unfolded}><summary>{escape(group)}</summary>{shown}</details>")
    return "\n".join(parts)


def _times(runs: Sequence[MeasuredRun]) -> str:
    """Mean seconds of an iteration, by what they went into."""
    # Rates are no seconds, and `wall_s` is of the whole run.
    names = [name for run in runs for name in run.scalars if name.startswith("time/") and not name.endswith(("_per_s", "wall_s"))]
    rows = [["seconds of an iteration, on average", *(run.name for run in runs)]]
    for name in dict.fromkeys(names):
        rows.append([name.removeprefix("time/"), *(f"{run.mean(name):.3f}" if run.points(name, "step") else "–" for run in runs)])
    told = "".join(
        f"<p><code>rlinf trace open {escape(str(run.folder.path))}</code> draws its timeline.</p>" for run in runs if _traced(run)
    )
    return f"<h2>Times</h2>{_table(rows)}{told}" if len(rows) > 1 else ""


def _traced(run: MeasuredRun) -> bool:
    return (run.folder.path / "trace.json").is_file()


def _films(runs: Sequence[MeasuredRun]) -> str:
    parts: list[str] = []
    room = FILMS_MIB << 20
    for run in runs:
        failures = sorted(run.folder.failures.glob("*.mp4"))[:MOST_FAILURES] if run.folder.failures.is_dir() else []
        for film in [*([run.folder.video] if run.folder.video.is_file() else []), *failures]:
            told = escape(f"{run.name}: {film.relative_to(run.folder.path)}")
            size = film.stat().st_size
            if size > room:
                parts.append(f"<p>{told} has no room among the {FILMS_MIB} MiB of films: {escape(str(film))}</p>")
                continue
            room -= size
            data = base64.b64encode(film.read_bytes()).decode()
            shown = f"<video controls loop src='data:video/mp4;base64,{data}'></video>"
            parts.append(f"<figure>{shown}<figcaption>{told}</figcaption></figure>")
    return f"<h2>Films</h2><div class='films'>{''.join(parts)}</div>" if parts else ""


def _transcripts(runs: Sequence[MeasuredRun]) -> str:
    parts: list[str] = []
    for run in runs:
        problems = run.transcripts()
        if problems:
            left = f", the first {MOST_PROBLEMS} of {len(problems)}" if len(problems) > MOST_PROBLEMS else ""
            parts.append(f"<h3>{escape(run.name)}: iteration {problems[0]['step']}, {problems[0]['kind']}{left}</h3>")
            parts += [_problem(problem) for problem in problems[:MOST_PROBLEMS]]
    return f"<h2>Transcripts</h2>{''.join(parts)}" if parts else ""


def _problem(problem: Mapping[str, Any]) -> str:
    parts = [f"<pre class='prompt'>{escape(str(problem['prompt']))}</pre>"]
    for response in problem["responses"]:
        right = "right" if response["right"] else "wrong"
        told = f"{right}, reward {response['reward']}, {response['tokens']} tokens, {response['finish']}"
        parts.append(f"<pre class='{right}'>{escape(str(response['text']))}<small> {escape(told)}</small></pre>")
    parts.append(f"<small>answer: {escape(str(problem['answer']))}</small>")
    return f"<div class='problem'>{''.join(parts)}</div>"


def _settings(runs: Sequence[MeasuredRun]) -> str:
    """The recipes as they were composed; of several first what differs."""
    known = [run for run in runs if run.config is not None]
    parts: list[str] = []
    if len(known) > 1:
        keys = dict.fromkeys(key for run in known for key in run.settings)
        values = {key: [run.settings.get(key, "–") for run in known] for key in keys}
        different = [[key, *found] for key, found in values.items() if len(set(found)) > 1]
        parts.append(
            _table([["what differs", *(run.name for run in known)], *different]) if different else "<p>No key differs.</p>"
        )
    for run in known:
        versions = ", ".join(f"{part} {number}" for part, number in (run.summary or {}).get("versions", {}).items())
        text = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
        parts.append(f"<details><summary>{escape(run.name)}</summary><p>{escape(versions)}</p><pre>{text}</pre></details>")
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of texts, the first of them their headings."""
    first, *others = [[escape(cell).replace("\n", "<br>") for cell in row] for row in rows]
    head = "".join(f"<th>{cell}</th>" for cell in first)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in others)
    return f"<table><tr>{head}</tr>{body}</table>"

"""Training commands that a page prints are accepted as they stand, up to the start of their workers."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rlinf.core.errors import RLinfError

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md"))
COMMAND = re.compile(r"^ *(?:pip install uv && )?uv run (?:--group \w+ )*(apps/\w+/(?:train|sft)\.py)(.*)$", re.MULTILINE)
OWN = ("my_policy", "mystuff")
"""Modules that the reader of a page writes."""


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A program and its arguments."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found = [match for match in COMMAND.finditer(text) if "`" not in match[2]]
        yield from ((match[1], tuple(shlex.split(match[2], comments=True))) for match in found)


def refusal(program: str, words: Sequence[str]) -> str:
    """What a program says against its arguments; nothing if it would start."""
    try:
        runpy.run_path(str(ROOT / program))["main"]([*words, "--explain", "runner"])  # reads all, starts nothing
    except RLinfError as error:
        return str(error)
    return ""


COMMANDS = sorted(set(commands()))
OVERRIDDEN = [(program, words) for program, words in COMMANDS if any("=" in word for word in words)]


def test_the_recipes_that_are_named_are_there() -> None:
    ours = [(program, words) for program, words in COMMANDS if "--config-name" in words and "--config-dir" not in words]
    named = [(program, words[words.index("--config-name") + 1]) for program, words in ours]
    assert len(named) > 20
    for program, recipe in named:
        config = "config_sft" if program.endswith("sft.py") else "config"
        assert (ROOT / program).with_name(config).joinpath(f"{recipe}.yaml").is_file(), recipe


@pytest.mark.parametrize(("program", "words"), OVERRIDDEN)
def test_overrides_are_accepted(program: str, words: tuple[str, ...]) -> None:
    why = refusal(program, words)
    assert not why or why.startswith("runner.resume_dir: ") or any(f"needs the module '{module}'" in why for module in OWN)

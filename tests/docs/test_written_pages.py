"""The pages that tools write are what schemas and docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("tool", ["key_reference", "paper_index"])
def test_what_a_tool_writes_is_up_to_date(tool: str) -> None:
    command = [sys.executable, ROOT / "tools" / f"{tool}.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_key_says_what_it_means() -> None:
    for name in ("embodied", "reasoning", "sft"):
        rows = (REFERENCE / f"keys-{name}.md").read_text(encoding="utf-8").splitlines()
        cells = [re.split(r"(?<!\\)\|", row) for row in rows if row.startswith("| `")]
        assert len(cells) > 40
        assert [row[1] for row in cells if not row[4].strip()] == []


def test_a_key_is_a_whole_row_whatever_its_default() -> None:
    for page in REFERENCE.glob("keys-*.md"):
        rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
        assert [row for row in rows if len(re.split(r"(?<!\\)\|", row)) != 6] == [], page.name


def test_each_cited_paper_has_a_title() -> None:
    rows = (REFERENCE / "papers.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row.startswith("| [")] == [], "cite a paper with authors, title and year at least once"

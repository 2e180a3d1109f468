"""Every Python block of every document runs, and every link to a file leads somewhere.

The blocks of one document are one script. A block that can't run says so: three backticks, then `python no-run`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("packages/*/*.md"), *ROOT.glob("apps/**/*.md"), *ROOT.glob("docs/**/*.md")])

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|(?:src|href)=\"([^\"#]+)\"")
PLACE = re.compile(r"\[[^\]]*\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"^    (?:pip|uv) .*?(?=\s+#|$)", re.MULTILINE)
CHINESE = ROOT / "README.zh-CN.md"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def script(document: Path) -> str:
    """All blocks of a document, each at its own line, so that a traceback points into the document."""
    text = document.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        lines += [""] * (start - len(lines)) + block[1].splitlines()
    return "\n".join(lines)


RUNNABLE = [document for document in DOCUMENTS if BLOCK.search(document.read_text(encoding="utf-8"))]


def test_documents_are_found() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert RUNNABLE


@pytest.mark.parametrize("document", RUNNABLE, ids=name)
def test_blocks_run(document: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{document.stem}_page.py"  # not by the name of a module that it imports
    path.write_text(script(document), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # pages share their cores
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{name(document)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    targets = [match[1] or match[2] for match in LINK.finditer(text)]
    files = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in files if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_into_pages_lead_to_a_heading(document: Path) -> None:
    lost: list[str] = []
    for target, place in PLACE.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        page = document.parent / target if target else document
        if page.suffix == ".md" and page.exists():
            headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
            lost += [f"{target}#{place}"] if place not in map(anchor, headings) else []
    assert lost == []


def anchor(heading: str) -> str:
    """By which a heading is linked to, as GitHub makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def test_the_chinese_readme_has_the_commands_and_recipes_of_the_english_one() -> None:
    chinese, english = CHINESE.read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8")
    commands = COMMAND.findall(chinese)
    assert len(commands) > 8
    assert [command for command in commands if command.strip() not in english] == []
    recipes = {
        name for row in chinese.splitlines() if row.startswith("|") for name in re.findall(r"`([a-z0-9_]+_[a-z0-9_]+)`", row)
    }
    assert [name for name in sorted(recipes) if not list(ROOT.glob(f"apps/*/config/{name}.yaml"))] == []

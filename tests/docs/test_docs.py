"""Every Python block of every document runs, and every link to a file leads somewhere.

The blocks of one document are one script. A block that can't run says so: three backticks, then `python no-run`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    """Runs scripts; see `page_server`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # pages share their cores
    command = [sys.executable, Path(__file__).with_name("page_server.py")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate()  # it ends where its input does


def runs(server: subprocess.Popen[str], path: Path) -> tuple[int, str]:
    """The exit code of a script, which is run in its folder, and what it said."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([str(path), str(path.parent)]), file=server.stdin, flush=True)
    return int(server.stdout.readline()), (path.parent / "said").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", RUNNABLE, ids=name)
def test_blocks_run(document: Path, tmp_path: Path, server: subprocess.Popen[str]) -> None:
    path = tmp_path / f"{document.stem}_page.py"  # not by the name of a module that it imports
    path.write_text(script(document), encoding="utf-8")
    code, said = runs(server, path)
    assert code == 0, f"{name(document)}\n{said}"


def test_a_page_is_a_program_of_its_own_and_its_failure_is_told(tmp_path: Path, server: subprocess.Popen[str]) -> None:
    page = tmp_path / "page.py"
    page.write_text("import sys, page\nprint(1)\nif __name__ == '__main__':\n    sys.modules['rlinf.core']\n", encoding="utf-8")
    code, said = runs(server, page)
    assert code == 1
    assert said.startswith("1\n1\nTraceback")
    assert f'{page}", line 4, in <module>\n' in said
    assert said.endswith("KeyError: 'rlinf.core'\n"), "what we test is not imported ahead"
    page.write_text("import atexit, os\natexit.register(os._exit, 3)\n", encoding="utf-8")
    assert runs(server, page) == (3, ""), "it ends as programs end"


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

"""Writes docs/reference/papers.md: every cited paper, and the functions and classes whose docstrings cite it.

uv run tools/paper_index.py            writes the page
uv run tools/paper_index.py --check    exits with 1 if the page is not what it would write
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "papers.md"
INTRODUCTION = """# Papers

Every paper that a docstring cites, and where. `uv run tools/paper_index.py` writes this page.

| paper | where it is used, and what of it |
|---|---|
"""

_IDENTIFIER = re.compile(r"(arXiv:\d{4}\.\d{4,5}|doi:10\.\d+/(?:\([\w.]+\)|[^\s,;()\]])*[^\s,;:.)\]])")
_TITLE = re.compile(r"[\"“]([^\"”]{4,200}?)[\"”]")
_AUTHORS = re.compile(r"([A-Z][\w’'\-]+(?: et al\.| and [A-Z][\w’'\-]+|, [A-Z][\w’'\-]+ and [A-Z][\w’'\-]+)?),?\s*$")
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_WHERE = re.compile(
    r"(?:eqs?\.|equations?|algorithms?|sections?|§|tables?|propositions?|definitions?)\s*[A-Z]?[\d.–\-]+\d*(?: and \d+)?",
    re.IGNORECASE,
)
Object = ast.FunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True)
class Citation:
    """One mention of a paper in one docstring."""

    paper: str
    """Its identifier, `arXiv:…` or `doi:…`."""
    title: str
    """Authors, title and year as this docstring has them; "" where it gives the identifier alone."""
    where: str
    """The equation, algorithm or section; "" if none is named."""
    name: str
    file: Path


def citations(file: Path) -> Iterator[Citation]:
    """What the docstrings of one file cite."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, Object):
            continue
        text = " ".join((ast.get_docstring(node) or "").split())
        name = file.stem if isinstance(node, ast.Module) else node.name
        start = 0
        for found in _IDENTIFIER.finditer(text):
            before = text[max(start, found.start() - 300) : found.start()]
            title, where = _described(before)
            yield Citation(found[0], title, where, name, file)
            start = found.end()


def _described(before: str) -> tuple[str, str]:
    """The paper and the place in it, from the words that precede an identifier."""
    titles = list(_TITLE.finditer(before))
    if not titles:
        places = _WHERE.findall(before[-60:])
        return "", places[-1] if places else ""
    title = titles[-1]
    authors, year = _AUTHORS.search(before[: title.start()]), _YEAR.search(before, title.end())
    places = _WHERE.findall(before[title.end() :])
    parts = [f"{authors[1]}," if authors else "", f"“{title[1].rstrip(',.')}”", f"({year[0]})" if year else ""]
    return " ".join(part for part in parts if part), ", ".join(places)


def page() -> str:
    """The whole document."""
    found = [c for file in sorted(ROOT.glob("packages/*/src/**/*.py")) for c in citations(file)]
    papers: dict[str, list[Citation]] = {}
    for citation in found:
        papers.setdefault(citation.paper, []).append(citation)
    rows = [_row(paper, papers[paper]) for paper in papers]
    return INTRODUCTION + "".join(sorted(rows, key=str.casefold))


def _row(paper: str, mentions: list[Citation]) -> str:
    title = max((m.title for m in mentions), key=len)
    kind, identifier = paper.split(":", 1)
    address = f"https://arxiv.org/abs/{identifier}" if kind == "arXiv" else f"https://doi.org/{identifier}"
    places: dict[tuple[Path, str], list[Citation]] = {}
    for mention in mentions:
        places.setdefault((mention.file, mention.name), []).append(mention)
    return f"| {f'{title}, ' if title else ''}[{paper}]({address}) | {', '.join(_link(found) for found in places.values())} |\n"


def _link(mentions: list[Citation]) -> str:
    first, where = mentions[0], ", ".join(dict.fromkeys(m.where for m in mentions if m.where))
    link = f"[`{first.name}`](../../{first.file.relative_to(ROOT).as_posix()})"
    return f"{link} ({where})" if where else link


def main() -> int:
    """Writes the page, or compares it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not what the docstrings say. Run: uv run tools/paper_index.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())

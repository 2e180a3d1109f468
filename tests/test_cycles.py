"""No cycles among the modules of a part, with lazy and `TYPE_CHECKING` imports counted.

A cycle at import fails by itself; the others make modules that can only be understood together. One pair is meant: a
configuration `x.py` that imports `_x.py`, next to it, when the thing is built, and is imported there for its type.
"""

import ast
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
PARTS = ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")
KNOWN: dict[str, set[str]] = {}
"""By part: modules that are in a cycle still. The lists only shrink: whoever resolves a cycle takes its modules out."""


def modules(source: Path) -> dict[str, Path]:
    """Every module under a source folder by its dotted name; a package is its `__init__`."""
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Which of the known modules a file names in its imports, at any depth.

    `import a.b` also runs the `__init__` of `a`, but says nothing of it, and is not counted as its use.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in inner}
    return found & set(known)


def cycles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The strongly connected components of more than one module."""
    reached = {name: reach(graph, name) for name in graph}
    found = {frozenset({name} | {other for other in reached[name] if name in reached[other]}) for name in graph}
    return sorted((component for component in found if len(component) > 1), key=sorted)


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from a module in one step or more."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - seen
        seen |= new
        ahead.extend(new)
    return seen


def is_configuration_pair(cycle: frozenset[str]) -> bool:
    """Whether it is `x.py` and `_x.py` of one folder."""
    if len(cycle) != 2:
        return False
    (one_folder, _, one), (other_folder, _, other) = (name.rpartition(".") for name in sorted(cycle))
    return one_folder == other_folder and {one, other} in ({one, f"_{one}"}, {other, f"_{other}"})


def cycles_of(source: Path) -> list[frozenset[str]]:
    """All cycles of the modules under a source folder that are not meant."""
    known = modules(source)
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    return [cycle for cycle in cycles(graph) if not is_configuration_pair(cycle)]


@pytest.mark.parametrize("part", PARTS)
def test_no_cycles(part: str) -> None:
    found = cycles_of(PACKAGES / part / "src")
    known = KNOWN.get(part, set())
    assert [sorted(cycle) for cycle in found if not cycle <= known] == [], "move what both need into a module below them"
    assert known - frozenset().union(*found) == set(), "in no cycle any more: take them out of KNOWN"


def test_what_counts_as_a_cycle(tmp_path: Path) -> None:
    package = tmp_path / "part"
    package.mkdir()
    (package / "__init__.py").write_text("from part.box import Box as Box\n")
    (package / "box.py").write_text("def make():\n    from part._box import build\n    return build()\n")
    (package / "_box.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from part.box import Box\n")
    assert cycles_of(tmp_path) == [], "a configuration and what it builds"
    (package / "lid.py").write_text("from part import box\n")
    (package / "_box.py").write_text("def build():\n    import part.lid\n")
    assert cycles_of(tmp_path) == [frozenset({"part.box", "part._box", "part.lid"})]
    (package / "_box.py").write_text("")
    (package / "lid.py").write_text("from part import Box\n")
    (package / "box.py").write_text("import part.lid\n")
    assert cycles_of(tmp_path) == [frozenset({"part", "part.box", "part.lid"})], "through the package's own `__init__`"

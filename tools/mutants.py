"""Changes formulas one character at a time and says which change no test noticed.

    uv run tools/mutants.py packages/algorithms/src/rlinf/algorithms/advantages/returns.py --tests packages/algorithms/tests
    uv run tools/mutants.py packages/algorithms/src/rlinf/algorithms --tests packages/algorithms/tests --sample 40 --seed 1

A change of the tests themselves is judged by the same sample before and after it; without `--tests`, each mutant meets the tests of
its own package:

    uv run tools/mutants.py packages/algorithms/src packages/core/src --sample 200 --seed 14

Each mutant lives in a copy of its package that precedes the real one on the path, in a child process of its own; the tree is
never touched. A mutant that is equivalent to the original survives rightly: read each survivor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

PATIENCE_S = 180
SWAPS: dict[type[ast.AST], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Lt: ">",
    ast.Gt: "<",
    ast.LtE: ">=",
    ast.GtE: "<=",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
WORDS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "amin": "amax", "amax": "amin", "exp": "log"}


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    file: Path
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """The source with the change."""
        lines = source.splitlines(keepends=True)
        row = lines[self.line - 1].encode()
        lines[self.line - 1] = (row[: self.start] + self.text.encode() + row[self.end :]).decode()
        return "".join(lines)


def mutants(file: Path) -> list[Mutant]:
    """Every change that we know to make in a file's arithmetic; nothing in docstrings, defaults or messages."""
    source = file.read_text(encoding="utf-8")
    return list(dict.fromkeys(m for node in _formulas(ast.parse(source)) for m in _changes(file, source, node)))


def _formulas(tree: ast.AST) -> Iterator[ast.AST]:
    annotation = tree.returns if isinstance(tree, ast.FunctionDef) else None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.arguments) or node is annotation:
            continue
        yield node
        yield from _formulas(node)


def _changes(file: Path, source: str, node: ast.AST) -> Iterator[Mutant]:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield from _between(file, source, node.left, node.right, SWAPS[type(node.op)])
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield from _between(file, source, node.left, node.comparators[0], SWAPS[type(node.ops[0])])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield Mutant(file, node.lineno, node.col_offset, node.col_offset + 1, "")
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        end = node.end_col_offset or node.col_offset
        yield Mutant(file, node.lineno, node.col_offset, end, repr(node.value + 1))
    elif isinstance(node, ast.Attribute) and node.attr in WORDS and node.end_lineno is not None and node.end_col_offset is not None:
        yield Mutant(file, node.end_lineno, node.end_col_offset - len(node.attr), node.end_col_offset, WORDS[node.attr])
    elif isinstance(node, ast.keyword) and node.arg in ("min", "max"):
        yield Mutant(file, node.lineno, node.col_offset, node.col_offset + 3, WORDS[node.arg])


def _between(file: Path, source: str, left: ast.expr, right: ast.expr, text: str) -> Iterator[Mutant]:
    """The operator between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    row = source.splitlines()[right.lineno - 1].encode()
    gap = row[left.end_col_offset : right.col_offset].decode()
    operator = gap.strip(" ()")
    if operator:
        start = left.end_col_offset + gap.index(operator)
        yield Mutant(file, right.lineno, start, start + len(operator), text)


def _package(file: Path) -> Path:
    """The folder of the package that has a file."""
    return next(parent.parent for parent in file.parents if parent.name == "src")


def killed(mutant: Mutant, tests: list[str]) -> bool:
    """Whether a test fails with the mutant: one of `tests`, or else of those of its package."""
    package = _package(mutant.file)
    root, tests = package / "src", tests or [str(package / "tests")]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__"))
        target = copy / mutant.file.relative_to(root)
        target.write_text(mutant.apply(mutant.file.read_text(encoding="utf-8")), encoding="utf-8")
        child = os.fork()
        if child == 0:
            _examine(copy, tests)
        return _outcome(child) != 0


def _examine(copy: Path, tests: list[str]) -> None:
    """The life of a child: the tests against the copy, in silence."""
    import pytest

    os.setsid()
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    code: int = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow", *tests])
    os._exit(int(code))


def _outcome(child: int) -> int:
    """The exit status of a child; 124 if its time was over, which counts as noticed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _warm_up() -> None:
    """Loads what every child needs, so that it is loaded once."""
    for module in ("torch", "torch.testing", "torch.autograd.gradcheck", "hypothesis", "pytest"):
        importlib.import_module(module)


def main() -> int:
    """Prints the survivors; exits with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", default=[], help="by default those of the package that has the mutant")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants to try; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    _warm_up()
    files = [f.resolve() for source in options.sources for f in (sorted(source.rglob("*.py")) if source.is_dir() else [source])]
    chosen = [m for file in files for m in mutants(file)]
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    for package, mutant in {_package(mutant.file): mutant for mutant in chosen}.items():
        if killed(replace(mutant, end=mutant.start, text=""), options.tests):
            parser.error(f"the tests of {package.name} fail without any change")
    survivors = 0
    for number, mutant in enumerate(chosen, start=1):
        if not killed(mutant, options.tests):
            survivors += 1
            line = mutant.apply(mutant.file.read_text(encoding="utf-8")).splitlines()[mutant.line - 1].strip()
            print(f"survived: {mutant.file.relative_to(Path.cwd())}:{mutant.line}: {line}", flush=True)
        if number % 25 == 0:
            print(f"{number} of {len(chosen)} tried, {survivors} survived", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - survivors} noticed, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

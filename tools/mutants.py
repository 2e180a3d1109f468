"""Changes code a little and says which change no test noticed.

    uv run tools/mutants.py packages/algorithms/src/rlinf/algorithms/advantages/returns.py --tests packages/algorithms/tests
    uv run tools/mutants.py packages/algorithms/src/rlinf/algorithms --tests packages/algorithms/tests --sample 40 --seed 1

Without `--tests`, each mutant meets the tests of its own package. A fixed set over many files, each with the tests that should
notice, stands in `mutants.toml`: some of its mutants are drawn, others are faults written by hand. What became of each stands in
`benchmarks/results/mutants.json`:

    uv run tools/mutants.py --set                   # those that were not noticed yet, nor are said to be equivalent
    uv run tools/mutants.py --set --again           # all of them, as after a change of the tests
    uv run tools/mutants.py --set --only ppo        # those of files with "ppo" in their paths

An interrupted run goes on where it was. A mutant is found again by the text of its line, so that edits elsewhere in a file change
nothing; one whose line has changed is replaced by another. A mutant that is equivalent to the original survives rightly: read each
survivor, and write down why (`why`).

Each mutant lives in a copy of its package that precedes the real one on the path, in a child process of its own; the tree is
never touched.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SET, RESULTS = ROOT / "tools" / "mutants.toml", ROOT / "benchmarks" / "results" / "mutants.json"
PATIENCE_S = 400
PATIENCE_CPU_S = 90
"""For a mutant that never ends; the tests of the set need at most a fifth of it."""
MEMORY = 8 * 2**30
SWAPS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("-",),
    ast.Sub: ("+",),
    ast.Mult: ("/",),
    ast.Div: ("*",),
    ast.FloorDiv: ("*",),
    ast.Mod: ("//",),
    # The bound itself, and the other side.
    ast.Lt: ("<=", ">="),
    ast.Gt: (">=", "<="),
    ast.LtE: ("<", ">"),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.BitAnd: ("|",),
    ast.BitOr: ("&",),
    ast.And: ("or",),
    ast.Or: ("and",),
}
WORDS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "amin": "amax", "amax": "amin", "exp": "log"}
OUR_MODULES = ("rlinf", "test", "conftest", "packages")


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

    def lines(self) -> tuple[str, str]:
        """The line without and with the change."""
        source = self.file.read_text(encoding="utf-8")
        return source.splitlines()[self.line - 1].strip(), self.apply(source).splitlines()[self.line - 1].strip()


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    noticed: bool
    by: str
    """The test that failed first; "time" if the tests did not end."""
    cpu_s: float


def mutants(file: Path) -> list[Mutant]:
    """Every change that we know to make in a file."""
    source = file.read_text(encoding="utf-8")
    found = (m for node in _formulas(ast.parse(source)) for m in _changes(file, source, node))
    return list(dict.fromkeys(mutant for mutant in found if mutant.text or mutant.end > mutant.start))


def _formulas(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that computes something: no annotation, decorator, default or message, nor `strict=True`, which only checks."""
    function = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.arguments):
            continue
        if function and (node in tree.decorator_list or node is getattr(tree, "returns", None)):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue
        yield node
        yield from _formulas(node)


def _changes(file: Path, source: str, node: ast.AST) -> Iterator[Mutant]:
    if isinstance(node, ast.BinOp):
        yield from _between(file, source, node.left, node.right, node.op)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(file, source, left, right, node.op)
    elif isinstance(node, ast.Compare):
        yield from _between(file, source, node.left, node.comparators[0], node.ops[0])
    elif isinstance(node, ast.AugAssign):
        yield from _between(file, source, node.target, node.value, node.op)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield Mutant(file, node.lineno, node.col_offset, node.operand.col_offset, "")
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        other = not node.value if isinstance(node.value, bool) else node.value + 1
        yield Mutant(file, node.lineno, node.col_offset, node.end_col_offset or node.col_offset, repr(other))
    elif isinstance(node, ast.Attribute) and node.attr in WORDS and node.end_lineno is not None and node.end_col_offset is not None:
        yield Mutant(file, node.end_lineno, node.end_col_offset - len(node.attr), node.end_col_offset, WORDS[node.attr])
    elif isinstance(node, ast.keyword) and node.arg in ("min", "max"):
        yield Mutant(file, node.lineno, node.col_offset, node.col_offset + 3, WORDS[node.arg])
    elif isinstance(node, ast.Continue):
        yield Mutant(file, node.lineno, node.col_offset, node.col_offset + len("continue"), "break")
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == node.end_lineno:
        yield Mutant(file, node.lineno, node.col_offset, node.end_col_offset or node.col_offset, "None")
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        other = "" if ast.unparse(node.test) == "TYPE_CHECKING" else "not "
        yield Mutant(file, node.test.lineno, node.test.col_offset, node.test.col_offset, other)


def _between(file: Path, source: str, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutant]:
    """Other operators between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    row = source.splitlines()[right.lineno - 1].encode()
    gap = row[left.end_col_offset : right.col_offset].decode()
    written = gap.strip(" ()")
    start = left.end_col_offset + gap.index(written)
    for text in SWAPS.get(type(operator), ()) if written else ():
        kept = "=" if written != text and written.endswith("=") and not isinstance(operator, ast.cmpop) else ""
        yield Mutant(file, right.lineno, start, start + len(written), text + kept)


def _package(file: Path) -> Path:
    """The folder of the package that has a file."""
    return next(parent.parent for parent in file.parents if parent.name == "src")


def outcome(mutant: Mutant, tests: Sequence[str], modules: Path | None = None) -> Outcome:
    """What tests say of a mutant; those of its package, if none are given.

    Args:
        mutant: one that changes nothing shows that the tests are green.
        tests: files, folders or single tests.
        modules: where the child writes the names of the modules of others that it has loaded.
    """
    package = _package(mutant.file)
    root, tests = package / "src", tests or [str(package / "tests")]
    with tempfile.TemporaryDirectory() as folder:
        copy, said = Path(folder) / "src", Path(folder) / "failed"
        shutil.copytree(root, copy)
        target = copy / mutant.file.relative_to(root)
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            compiled.unlink()
        target.write_text(mutant.apply(mutant.file.read_text(encoding="utf-8")), encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            _examine(copy, tests, said, modules)
        code = _wait(child)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        by = said.read_text() if said.exists() else {0: "", 124: "time"}.get(code, f"exit code {code}")
        return Outcome(code != 0, by, round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1))


class _FirstFailure:
    """A plugin of pytest that writes down which test failed first."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of a test."""
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        """Of a module that could not be read."""
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid)


def _examine(copy: Path, tests: Sequence[str], said: Path, modules: Path | None) -> None:
    """The life of a child: the tests against the copy, in silence."""
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_CPU_S, PATIENCE_CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    importlib.invalidate_caches()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow", *tests]
    code = int(pytest.main(arguments, plugins=[_FirstFailure(said)]))
    if modules is not None:
        modules.write_text("\n".join(name for name in sys.modules if not name.startswith(OUR_MODULES)))
    os._exit(code)


def _wait(child: int) -> int:
    """The exit status of a child; 124 if its time was over, which counts as noticed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return 124 if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _warm_up(file: Path, tests: Sequence[str]) -> None:
    """Checks that tests are green without a change, and loads what they load of others, so that it is loaded once.

    Raises:
        SystemExit: they fail.
    """
    compileall.compile_dir(_package(file) / "src", quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(Mutant(file, 1, 0, 0, ""), tests, modules := Path(folder) / "modules")
        if found.noticed:
            sys.exit(f"{file.relative_to(ROOT)}: its tests fail without any change: {found.by}")
        for name in modules.read_text().splitlines():
            # Some can't be loaded alone; then each child does.
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def by_hand(file: Path, was: str, now: str) -> Mutant:
    """The mutant that replaces a text, which must stand once in a file and on one line.

    Raises:
        SystemExit: it does not.
    """
    before, *behind = file.read_text(encoding="utf-8").split(was)
    if len(behind) != 1 or "\n" in was:
        sys.exit(f"{file.relative_to(ROOT)}: expected '{was}' once on a line, found it {len(behind)} times. Mend {SET.name}.")
    start = len(before.rpartition("\n")[2].encode())
    return Mutant(file, before.count("\n") + 1, start, start + len(was.encode()), now)


class FixedSet:
    """The mutants of `mutants.toml`, drawn once or written by hand, and what became of each."""

    def __init__(self) -> None:
        plan: dict[str, Any] = tomllib.loads(SET.read_text(encoding="utf-8"))
        before: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
        self.tests = {str(part["file"]): [str(test) for test in part["tests"]] for part in plan["of"]}
        self._mutants: dict[tuple[str, str, str, int], Mutant] = {}
        self.listed: list[dict[str, Any]] = []
        for part in plan["of"]:
            file = str(part["file"])
            before_of = {(entry["was"], entry["now"], entry["nth"]): entry for entry in before if entry["file"] == file}
            found, written = dict(_numbered(ROOT / file)), dict[tuple[str, str, int], dict[str, str]]()
            for fault in part.get("by_hand", ()):
                mutant = by_hand(ROOT / file, fault["was"], fault["now"])
                found[key := (*mutant.lines(), 0)] = mutant
                written[key] = {"fault": fault["fault"]}
            self._mutants |= {(file, *key): mutant for key, mutant in found.items()}
            number = part.get("mutants", 0)
            kept = [key for key in before_of if key in found and key not in written][:number]
            others = sorted(found.keys() - before_of.keys() - written.keys())
            drawn = random.Random(f"{plan['seed']} {file}").sample(others, number - len(kept))
            for was, now, nth in [*kept, *drawn, *written]:
                new = {"file": file, "was": was, "now": now, "nth": nth, "outcome": None}
                self.listed.append({**before_of.get((was, now, nth), new), **written.get((was, now, nth), {})})

    def run(self, *, again: bool, only: str) -> None:
        """Tries mutants, and writes down after each what became of it."""
        for file, tests in self.tests.items():
            # What was said to be equivalent is tried again too, so that one which no longer is shows itself.
            of_file = [entry for entry in self.listed if entry["file"] == file and only in file]
            todo = [entry for entry in of_file if again or (entry["outcome"] in (None, "survived") and "why" not in entry)]
            if todo:
                _warm_up(ROOT / file, tests)
            for entry in todo:
                mutant = self._mutants[file, entry["was"], entry["now"], entry["nth"]]
                said = outcome(mutant, tests)
                entry["outcome"] = "noticed" if said.noticed else "survived"
                entry.pop("by", None)
                entry.update({"by": said.by} if said.by else {})
                print(f"{entry['outcome']:8} {said.cpu_s:5} s  {file}:{mutant.line}: {entry['now']}  {said.by[-60:]}", flush=True)
                RESULTS.write_text(json.dumps(self.listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> int:
        """Prints a line for each file; how many survive without a reason."""
        for file in self.tests:
            of_file = [entry for entry in self.listed if entry["file"] == file]
            counts = Counter(_verdict(entry) for entry in of_file)
            print(f"{', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items())):40} {file}")
        total = Counter(_verdict(entry) for entry in self.listed)
        print(f"{len(self.listed)} mutants: {', '.join(f'{count} {verdict}' for verdict, count in sorted(total.items()))}")
        return total["survived"]


def _verdict(entry: dict[str, Any]) -> str:
    if entry["outcome"] == "survived" and "why" in entry:
        return "equivalent"
    return entry["outcome"] or "not tried"


def _numbered(file: Path) -> Iterator[tuple[tuple[str, str, int], Mutant]]:
    """Every mutant of a file by its line without and with the change, and how many before it have the same."""
    seen: Counter[tuple[str, str]] = Counter()
    for mutant in mutants(file):
        lines = mutant.lines()
        yield (*lines, seen[lines]), mutant
        seen[lines] += 1


def main() -> int:
    """Prints the survivors; exits with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--tests", nargs="+", default=[], help="by default those of the package that has the mutant")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants to try; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="store_true", help="the fixed set instead of sources")
    parser.add_argument("--again", action="store_true", help="also those of the set whose outcome is known")
    parser.add_argument("--only", default="", help="of the set, files whose paths contain this")
    options = parser.parse_args()
    if options.set:
        fixed = FixedSet()
        fixed.run(again=options.again, only=options.only)
        return 1 if fixed.summary() else 0
    if not options.sources:
        parser.error("name sources, or give --set")
    return _sampled(options)


def _sampled(options: argparse.Namespace) -> int:
    files = [f.resolve() for source in options.sources for f in (sorted(source.rglob("*.py")) if source.is_dir() else [source])]
    chosen = [m for file in files for m in mutants(file)]
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    for mutant in {_package(mutant.file): mutant for mutant in chosen}.values():
        _warm_up(mutant.file, options.tests)
    survivors = 0
    for number, mutant in enumerate(chosen, start=1):
        if not outcome(mutant, options.tests).noticed:
            survivors += 1
            print(f"survived: {mutant.file.relative_to(ROOT)}:{mutant.line}: {mutant.lines()[1]}", flush=True)
        if number % 25 == 0:
            print(f"{number} of {len(chosen)} tried, {survivors} survived", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - survivors} noticed, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""The laws of the house that can be read off the files; import-linter guards who may import whom a second time."""

import ast
import gc
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "packages"
PARTS = ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")
SOURCES = {part: sorted((PACKAGES / part / "src").rglob("*.py")) for part in PARTS}
ALL_SOURCES = [(part, path) for part in PARTS for path in SOURCES[part]]

MAX_LINES = 400
MAX_SCRIPT_LINES = 100
MAX_MODULES = 15
"""In a folder of a part, beside its `__init__` and its folders."""
HEAVY = frozenset(
    {"mani_skill", "sapien", "mujoco", "gymnasium_robotics", "vllm", "sglang", "megatron", "libero", "isaacgym", "lerobot"}
)
"""What takes seconds to import or isn't everywhere; only in files named `_x.py`."""
FORBIDDEN = {
    "core": frozenset({"torch", "ray", "gymnasium", "hydra", "omegaconf"}),
    "scheduler": frozenset({"gymnasium", "hydra", "omegaconf"}),
    **{part: frozenset({"ray", "hydra", "omegaconf"}) for part in ("algorithms", "models", "envs", "engines")},
    "runners": frozenset({"ray"}),
}
"""Third-party libraries that a part knows nothing of, however late it would import them."""


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, which many laws look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _trees() -> Iterator[None]:
    """While they are held, nobody looks for garbage among their million nodes: that took most of the time."""
    gc.disable()
    yield
    parsed.cache_clear()
    gc.enable()


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The dotted names of all modules that a file imports, at any depth; six laws ask for them."""
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by the full name, not by dots"
            found += [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return tuple(found)


def python_files() -> list[Path]:
    """Every Python file that belongs to the project."""
    folders = [ROOT / name for name in ("packages", "apps", "tests", "tools", "benchmarks")]
    found = [path for folder in folders for path in folder.rglob("*.py")]
    return sorted([*found, ROOT / "noxfile.py"])


def within(name: str, packages: frozenset[str]) -> bool:
    return name.partition(".")[0] in packages


def test_the_sources_are_found() -> None:
    assert all(SOURCES[part] for part in PARTS)
    assert {path.name for path in PACKAGES.iterdir() if path.is_dir()} == set(PARTS)


def test_rlinf_is_a_namespace() -> None:
    assert [str(path) for path in PACKAGES.glob("*/src/rlinf/*.py")] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_fills_its_own_name_only(part: str) -> None:
    assert [path.name for path in (PACKAGES / part / "src").iterdir() if path.name != "__pycache__"] == ["rlinf"]
    assert [path.name for path in (PACKAGES / part / "src" / "rlinf").iterdir() if path.name != "__pycache__"] == [part]


def strangers(part: str, path: Path) -> list[str]:
    """What a file of a part, or of its tests, imports from another part."""
    others = [name for name in imports(path) if name.startswith("rlinf.") and name.split(".")[1] not in ("core", part)]
    return [f"{path.relative_to(PACKAGES)}: {name}" for name in others]


@pytest.mark.parametrize("part", PARTS)
def test_strangers(part: str) -> None:
    found = [line for path in SOURCES[part] for line in strangers(part, path)]
    assert found == [], f"{part} imports another part; use a protocol of rlinf.core, or the registry"


@pytest.mark.parametrize("part", PARTS)
def test_strangers_in_tests(part: str) -> None:
    found = [line for path in sorted((PACKAGES / part / "tests").rglob("*.py")) for line in strangers(part, path)]
    assert found == [], "each part is tested alone"


@pytest.mark.parametrize("part", PARTS)
def test_forbidden_libraries(part: str) -> None:
    assert [f"{path.name}: {name}" for path in SOURCES[part] for name in imports(path) if within(name, FORBIDDEN[part])] == []


@pytest.mark.parametrize("part", PARTS)
def test_heavy_libraries_hide_in_underscore_files(part: str) -> None:
    public = [path for path in SOURCES[part] if not path.name.startswith("_") or path.name == "__init__.py"]
    found = [f"{path.relative_to(PACKAGES)}: {name}" for path in public for name in imports(path) if within(name, HEAVY)]
    assert found == [], "import it in a file named _x.py, reached when the thing is built"


def test_a_file_fits_in_the_head() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("part", PARTS)
def test_a_folder_fits_in_the_head(part: str) -> None:
    counts = Counter(path.parent for path in SOURCES[part] if path.name != "__init__.py")
    found = {str(folder.relative_to(PACKAGES)): count for folder, count in counts.items() if count > MAX_MODULES}
    assert found == {}, "merge modules of which only one other knows, or put those of one idea into a folder"


@pytest.mark.parametrize("path", sorted((ROOT / "apps").glob("*/*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_an_app_is_a_short_script(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_SCRIPT_LINES


@pytest.mark.parametrize("part", PARTS)
def test_nobody_imports_an_app(part: str) -> None:
    found = [f"{path.name}: {name}" for path in SOURCES[part] for name in imports(path) if within(name, frozenset({"apps"}))]
    assert found == []


@pytest.mark.parametrize("part", PARTS)
def test_a_package_is_complete(part: str) -> None:
    folder = PACKAGES / part
    for name in ("README.md", "CHANGELOG.md", "LICENSE", f"src/rlinf/{part}/__init__.py", f"src/rlinf/{part}/py.typed"):
        assert (folder / name).is_file(), f"packages/{part}/{name} is missing"
    assert list((folder / "tests").rglob("test_*.py")), f"packages/{part}/tests holds no test"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("part", PARTS)
def test_a_package_has_a_version_and_a_changelog_of_its_own(part: str) -> None:
    project = tomllib.loads((PACKAGES / part / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == f"rlinf-{part}"
    assert "version" not in project.get("dynamic", [])
    assert f"\n## {project['version']}" in (PACKAGES / part / "CHANGELOG.md").read_text(encoding="utf-8")
    own = [name for name in project["dependencies"] if name.startswith("rlinf")]
    assert all(name.startswith("rlinf-core>=") for name in own), "a part depends on core, by a range of versions"
    assert len(own) == (0 if part == "core" else 1)


@pytest.mark.parametrize("part", PARTS)
def test_a_package_declares_what_it_imports(part: str) -> None:
    declared = {canonical(name) for name in [*requirements("core"), *requirements(part)]}
    owners = packages_distributions()
    # A sandbox's processes load files of ours by their path, to see nothing else of it.
    by_path = {path.stem for path in [*SOURCES["core"], *SOURCES[part]] if {"sandbox", "process"} & {path.parent.name}}
    for path in SOURCES[part]:
        for name in imports(path):
            top = name.partition(".")[0]
            if top not in {"rlinf", *sys.stdlib_module_names, *by_path}:
                found = {canonical(owner) for owner in owners.get(top, [top])}
                assert found & declared, f"{path.name} imports {top}, and packages/{part}/pyproject.toml names none of {found}"


def requirements(part: str) -> list[str]:
    """What a part's pyproject names, in its dependencies and in its extras."""
    project = tomllib.loads((PACKAGES / part / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(line for extra in project.get("optional-dependencies", {}).values() for line in extra)]


def canonical(requirement: str) -> str:
    """The normalised name of a distribution, without its version."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


def test_the_meta_package_holds_no_code_and_names_every_part() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(root["project"]["dependencies"]) == sorted(f"rlinf-{part}" for part in PARTS)
    assert not (ROOT / "src").exists()
    assert not (ROOT / "rlinf").exists()


def methods(path: Path) -> Iterator[tuple[str, bool]]:
    """The name of each public method of a file's classes, and whether it has a docstring."""
    for cls in ast.walk(parsed(path)):
        for node in cls.body if isinstance(cls, ast.ClassDef) and not cls.name.startswith("_") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node.name, ast.get_docstring(node) is not None


def asserted_input(path: Path) -> Iterator[str]:
    """The lines with an `assert` that is more than a note to the type checker about what the function itself has made."""
    for function in ast.walk(parsed(path)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and not is_narrowing(node.test, given - {"self"}):
                yield f"{path.relative_to(PACKAGES)}:{node.lineno}"


def is_narrowing(test: ast.expr, given: set[str]) -> bool:
    """Whether it is `name is not None`, of a name that was not given or of an attribute of `self`."""
    match test:
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            own = isinstance(left, ast.Attribute) and isinstance(left.value, ast.Name) and left.value.id == "self"
            return own or (isinstance(left, ast.Name) and left.id not in given)
        case _:
            return False


def test_assert_never_validates_input() -> None:
    assert sorted({line for _, path in ALL_SOURCES for line in asserted_input(path)}) == [], "raise an error that names the way out"


WAITS = {"Event": "wait", "Barrier": "wait", "Condition": "wait", "Thread": "join", "Popen": "wait", "Process": "join"}
"""What waits without end if it is given no time, and how it is called."""


def endless_waits(path: Path) -> Iterator[str]:
    """The lines that wait without end for what the same file has made."""
    tree = parsed(path)
    waited: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=ast.Call(func=made, keywords=options)):
                kind = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
                owner = getattr(getattr(made, "value", None), "id", "")
                # A barrier can be told its time when it is made; asyncio has `asyncio.timeout` around it.
                if kind in WAITS and owner != "asyncio" and "timeout" not in {option.arg for option in options}:
                    waited[name] = WAITS[kind]
            case _:
                pass
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method), args=[], keywords=[]
            ):
                if waited.get(name) == method:
                    yield f"{path.relative_to(PACKAGES)}:{node.lineno}"
            case _:
                pass


def test_nothing_waits_for_ever() -> None:
    assert sorted({line for _, path in ALL_SOURCES for line in endless_waits(path)}) == [], "give it a deadline, or wait in turns"


THIRD_PARTY = frozenset({"forward", "step", "reset", "render", "close", "call"})
"""Methods that are documented where they come from: torch's modules and Gymnasium's environments."""


def test_a_method_is_documented_or_implements_one_that_is() -> None:
    found = [(path, *method) for _, path in ALL_SOURCES for method in methods(path) if not path.name.startswith("_")]
    documented = THIRD_PARTY | {name for _, name, has in found if has}
    assert sorted(f"{path.relative_to(PACKAGES)}: {name}" for path, name, has in found if not has and name not in documented) == []

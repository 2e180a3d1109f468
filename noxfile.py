"""The table of contents of development.

`nox` runs what a contributor needs (the sessions with a star), `nox -s tests-algorithms` one of them, and
`nox -s tests-core -- -k config` passes arguments on to pytest. `nox -P 3.12 -s tests-core` uses another Python.

Each part is tested in an environment that holds it and core alone; what needs the whole house shares `.nox/house`. All have
the versions of uv.lock.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"

# Images of containers often set it; then each of some hundred processes would compile again all that it imports, half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
HOUSE = ROOT / ".nox" / "house"
PARTS = ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")
SIMULATORS = ("maniskill", "robotics", "video", "metaworld", "envpool", "libero", "minari", "recording", "world-model", "datasets")
EXTRAS = {
    "algorithms": ("math",),
    "envs": (*SIMULATORS, "search", "embedding", "mcp", "reasoning-gym"),
    "models": ("all",),
    "engines": ("hf", "openai", "megatron"),
}
LAWS = tuple(f"tests/test_{name}.py" for name in ("laws", "cycles", "faces"))
RECIPES = tuple(f"tests/test_{name}.py" for name in ("light_configurations", "recipes", "refusals", "ranges", "choices", "keys"))
FAST = ("-q", "-m", "not slow")
PARALLEL = ("-n", "2", "--dist", "loadfile")
"""One for each core of a small machine."""
CROWDED = ("-n", "3", "--dist", "loadfile")
"""One more than cores, where tests wait for what other programs start."""
AS_LISTED = ("--no-loadscope-reorder",)
"""What is listed first begins first; pytest-xdist would put files of few tests last, and the longest are among them."""
LONGEST = {
    "algorithms": ("test_rewards_scoring.py",),
    "envs": ("test_remote_failures.py", "test_mcp.py", "test_maniskill.py"),
    "engines": ("test_megatron_trainer.py", "test_sharding.py"),
    "e2e": ("test_verifiers.py", "test_failures.py", "test_reasoning_ray.py", "test_wide_search.py"),
}
"""Which of a session's tests begin first: they take longest, and wait for other programs."""


def _files(folder: str, *first: str) -> list[str]:
    """The test files of a folder, some of them first; pytest would put them back in order if the folder were named, too."""
    return sorted(map(str, Path(folder).rglob("test_*.py")), key=lambda path: (Path(path).name not in first, path))


def _link_mode() -> str:
    """How uv fills our environments: with links, because each holds gigabytes; symbolic ones if its cache is on another disk."""
    if "UV_LINK_MODE" in os.environ:
        return os.environ["UV_LINK_MODE"]
    cache = Path(subprocess.run(["uv", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    cache.mkdir(parents=True, exist_ok=True)
    return "hardlink" if cache.stat().st_dev == ROOT.stat().st_dev else "symlink"


def _optimized_python() -> str | None:
    """The Python of our environments where the one that runs this was built without profile-guided optimization.

    Linux distributions build theirs with it, pyenv does not unless it is told to; all sessions together then take an eighth longer.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    wanted = Path("/usr/bin", version), Path("/usr/include", version, "Python.h")  # some dependencies are built by a C compiler
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return None if optimized or "UV_PYTHON" in os.environ or not all(map(Path.exists, wanted)) else str(wanted[0])


PYTHON = _optimized_python()


def _sync(session: nox.Session, environment: Path, *arguments: str) -> dict[str, str | None]:
    """Makes an environment exactly what the lock says for these arguments; returns how to run in it."""
    env: dict[str, str | None] = {"UV_PROJECT_ENVIRONMENT": str(environment), "UV_LINK_MODE": _link_mode(), "VIRTUAL_ENV": None}
    env["UV_PYTHON"] = session.python if isinstance(session.python, str) else os.environ.get("UV_PYTHON", PYTHON)
    session.run_install("uv", "sync", "--quiet", "--no-default-groups", *arguments, env=env, external=True)
    return env


def _share_bytecode(environment: Path) -> None:
    """Takes over what Python has compiled in our other environments."""
    runpy.run_path(str(ROOT / "tools" / "bytecode.py"))["share_bytecode"](environment, ROOT.glob(".nox/*"))


def _house(session: nox.Session, *command: str) -> None:
    """Runs a command where all parts, the simulators and the tools are installed."""
    groups = [
        f"--group={name}"
        for name in ("dev", "embodied", "reasoning", "agent", "engines", "simulators", "policies", "lint", "types", "test", "bench")
    ]
    if shutil.which("cc"):  # without, the tests that play TextWorld skip themselves
        groups.append("--group=games")
    env = _sync(session, HOUSE, "--all-packages", *groups)
    session.run("uv", "run", "--no-sync", *command, env=env, external=True)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style and format, by ruff."""
    _house(session, "ruff", "check")
    _house(session, "ruff", "format", "--check")


@nox.session(venv_backend="none")
def law(session: nox.Session) -> None:
    """The laws of the house: who may import whom, cycles, sizes, public names; types; the lock; and every recipe of every app."""
    _house(session, "lint-imports")
    _house(session, "pytest", "-q", *CROWDED, *AS_LISTED, "tests/types", "tests/lock", *LAWS, *RECIPES, *session.posargs)


@nox.session(venv_backend="none", default=False)
def types(session: nox.Session) -> None:
    """Types, by pyright in strict mode."""
    _house(session, "pytest", "-q", "tests/types", *session.posargs)


@nox.session(venv_backend="none", default=False)
def lock(session: nox.Session) -> None:
    """The committed uv.lock: names no index, and pins what uv resolves."""
    _house(session, "pytest", "-q", "tests/lock", *session.posargs)


def _tests(part: str) -> None:
    def tests(session: nox.Session) -> None:
        extras = [f"--package=rlinf-{part}", *(f"--extra={extra}" for extra in EXTRAS.get(part, ()))]
        env = _sync(session, Path(session.virtualenv.location), *extras, "--group=test")
        _share_bytecode(Path(session.virtualenv.location))
        session.run("python", "tests/isolated/strangers.py", part, env=env)
        if part == "scheduler":  # a process that has joined a Ray is no place to test what is refused without one
            for marked in ("ray and not slow", "not ray and not slow"):
                session.run("pytest", "-q", "-m", marked, *CROWDED, f"packages/{part}/tests", *session.posargs, env=env)
        else:
            folder = f"packages/{part}/tests"
            chosen = (*CROWDED, *AS_LISTED, *_files(folder, *LONGEST[part])) if part in LONGEST else (*PARALLEL, folder)
            session.run("pytest", *FAST, *chosen, *session.posargs, env=env)

    tests.__doc__ = f"The tests of rlinf-{part}, installed with core alone."
    nox.session(name=f"tests-{part}", python=PYTHON)(tests)


for _part in PARTS:
    _tests(_part)


@nox.session(venv_backend="none")
def isolated(session: nox.Session) -> None:
    """Each wheel alone in a bare environment: it imports, and what it must not load it doesn't."""
    _house(session, "pytest", "-q", *PARALLEL, "--basetemp=.nox/isolated", "tests/isolated", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Every Python block of every document runs, every link leads somewhere."""
    _share_bytecode(HOUSE)
    _house(session, "pytest", "-q", "-n", "2", "tests/docs", *session.posargs)


@nox.session(venv_backend="none", default=False)
def recipes(session: nox.Session) -> None:
    """Every YAML file of every app is read, checked and planned; what is wrong in one is refused, by keys that exist."""
    _house(session, "pytest", "-q", *PARALLEL, *AS_LISTED, *RECIPES, *session.posargs)


@nox.session(venv_backend="none")
def e2e(session: nox.Session) -> None:
    """Several parts together, and the whole thing end to end; and what core and scheduler do with torch, which they lack alone."""
    _sync_verifiers(session)
    together = sorted({f"tests/{path.name}" for path in ROOT.glob("tests/test_*.py")}.difference(LAWS, RECIPES))
    found = sorted(Path("packages/core/tests").rglob("test_*.py"))
    with_torch = [str(path) for path in found if "torch" in path.read_text(encoding="utf-8")]
    for path in sorted(Path("packages/scheduler/tests").glob("test_*.py")):
        if "pytest.mark.torch" in path.read_text(encoding="utf-8"):
            with_torch.append(str(path))
    files = sorted([*with_torch, *together, *_files("tests/e2e")], key=lambda path: Path(path).name not in LONGEST["e2e"])
    _house(session, "pytest", *FAST, *CROWDED, *AS_LISTED, *files, *session.posargs)


@nox.session(venv_backend="none", default=False)
def slow(session: nox.Session) -> None:
    """What takes minutes: learning to the bound over seeds, 200 random kills, a cut network, thousands of resets, four ranks."""
    packages = [f"packages/{part}/tests" for part in PARTS]
    _house(session, "pytest", "-q", "-m", "slow", "tests/e2e", *packages, *session.posargs)


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """What needs a GPU: training, generation and weights on one, and whole runs; elsewhere all of it skips itself."""
    packages = [f"packages/{part}/tests" for part in PARTS]
    _house(session, "pytest", "-q", "-m", "gpu", *packages, "tests/e2e", *session.posargs)


def _sync_verifiers(session: nox.Session) -> None:
    """Makes the interpreter in which the library verifiers runs, and tells the tests of it."""
    environment = ROOT / ".nox" / "verifiers"
    _sync(session, environment, "--package=rlinf-envs", "--extra=verifiers")
    _share_bytecode(environment)
    session.env["VERIFIERS_PYTHON"] = str(environment / "bin" / "python")


@nox.session(venv_backend="none", default=False)
def verifiers(session: nox.Session) -> None:
    """Environments of the library verifiers, alone; `e2e` plays them, too."""
    _sync_verifiers(session)
    _house(session, "pytest", "-q", "tests/e2e/test_verifiers.py", *session.posargs)


def _engine(name: str, *packages: str) -> None:
    def tests(session: nox.Session) -> None:
        folder = Path("packages/engines")
        editable = [argument for part in ("core", "models", "engines") for argument in ("-e", f"packages/{part}")]
        extra = [argument for package in packages for argument in ("-e", package)]
        pins = ("-r", f"{folder}/requirements-{name}-cpu.txt", "--override", f"{folder}/overrides-{name}-cpu.txt")
        session.install(*pins, "pytest", "pytest-timeout", "hypothesis", *editable, *extra)
        session.run("pytest", "-q", f"{folder}/tests/generation_{name}", *session.posargs, env={"OMP_NUM_THREADS": "1"})

    tests.__doc__ = f"{name} on a CPU behind our generator, in an environment of its own: several gigabytes, minutes."
    nox.session(name=f"engines-{name}", default=False)(tests)


_engine("vllm")
_engine("sglang", "packages/engines/tests/generation_sglang/platform_plugin")


@nox.session(default=False)
def lowest(session: nox.Session) -> None:
    """The lower bounds of direct dependencies, for every part; without the simulators, which pin what they need."""
    extras = {**EXTRAS, "envs": ("search", "mcp", "reasoning-gym", "recording", "video")}
    editable = [f"packages/{part}" + (f"[{','.join(extras[part])}]" if part in extras else "") for part in PARTS]
    groups = ("--group=test", *(f"--group=packages/{part}/pyproject.toml:test" for part in PARTS))
    session.install("--resolution=lowest-direct", *groups, *(argument for path in editable for argument in ("-e", path)))
    for part in PARTS:
        session.run("pytest", *FAST, f"packages/{part}/tests", *session.posargs, env={"OMP_NUM_THREADS": "1"})

"""Which command installs something into the environment that runs, and where modules of one's own are found."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import sys
import threading
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

from rlinf.core.errors import MissingExtra

FIND_MODULE = "Run from the folder that has it, or name that folder in PYTHONPATH; if a package has it, install that package."
"""What to do about a module of the user's that can't be found."""
EXTENSION: Final = "RLINF_EXT_MODULE"
"""The environment variable that names a module of the user's, which every process imports."""
_IMPORTED: Final[set[str]] = set()
_IMPORTING: Final = threading.RLock()
_EXTRAS = re.compile(r"([\w.-]+)\[([^\]]*)\]")
_NEEDED_BY = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


def import_from_here() -> None:
    """Modules of the current folder can be imported from now on, as with `python -m`; not with `python -P`."""
    with contextlib.suppress(OSError):
        here = os.getcwd()
        # "" in `sys.path` is the current folder, too.
        if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)


def import_extension() -> None:
    """Imports the module that `RLINF_EXT_MODULE` names, once, so that what its decorators register can be chosen by name.

    A function `register` in it, which takes nothing, is called afterwards. The processes of a run have the environment variables of
    their driver, on other nodes, too. What the module itself raises is raised.

    Raises:
        MissingExtra: there is no such module.
    """
    name = os.environ.get(EXTENSION, "")
    # Another thread waits until all names are there; this one comes here again with each name that the module registers.
    with _IMPORTING:
        if not name or name in _IMPORTED:
            return
        _IMPORTED.add(name)
        try:
            register = getattr(importlib.import_module(name), "register", None)
            if callable(register):
                register()
        except BaseException as error:
            _IMPORTED.discard(name)
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                raise MissingExtra(EXTENSION, f"no module '{name}'", FIND_MODULE) from error
            raise


def is_there(module: str) -> bool:
    """Whether a module can be imported; it is not, but the packages that it is in are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    except ValueError:  # one that was made by hand
        return module in sys.modules


def install_command(requirement: str) -> str:
    """The command that installs a requirement here.

    | environment | command |
    |---|---|
    | of this repository, which also has the program that runs | `uv run --group … apps/embodied/train.py …`: runs it again |
    | of this repository | `uv sync --group …` |
    | the same, where no group has it | `uv run --all-packages --extra …`, or `uv sync --inexact --package … --extra …` |
    | of another project of uv | `uv add 'x'` |
    | made by uv, or without pip | `uv pip install 'x'` |
    | any other | `pip install 'x'` |

    Args:
        requirement: as for pip, such as "rlinf-envs[maniskill]".
    """
    prefix = Path(sys.prefix)
    project = prefix.parent / "pyproject.toml"
    by_uv = _made_by_uv(prefix)
    if by_uv and prefix.name == ".venv" and project.is_file():
        return _in_project(project, requirement)
    if by_uv or importlib.util.find_spec("pip") is None:
        # uv installs into the environment of VIRTUAL_ENV unless it is told another.
        here = "" if os.environ.get("VIRTUAL_ENV") == sys.prefix else f"--python {prefix} "
        return f"uv pip install {here}'{requirement}'"
    return f"pip install '{requirement}'"


def _made_by_uv(prefix: Path) -> bool:
    try:
        return any(line.startswith("uv = ") for line in (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines())
    except OSError:
        return False


def _in_project(file: Path, requirement: str) -> str:
    """In the environment of a project of uv: a group or an extra of this repository, a new dependency of any other project."""
    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    found = _EXTRAS.fullmatch(requirement)
    sources = project.get("tool", {}).get("uv", {}).get("sources", {})
    if found is None or sources.get(found[1]) != {"workspace": True}:
        return f"uv add '{requirement}'"
    name, wanted = found[1], found[2].split(",")
    again = _program(file.parent)
    for group, entries in project.get("dependency-groups", {}).items():
        given = [match[2].split(",") for entry in entries if (match := _EXTRAS.match(str(entry))) and match[1] == name]
        if set(wanted) <= _with_implied(name, [extra for extras in given for extra in extras]):
            # `uv run` keeps what else is installed.
            return f"uv sync --group {group}" if again is None else f"uv run --group {group} {again}"
    extras = " ".join(f"--extra {extra}" for extra in wanted)
    # Without `--inexact`, uv removes what else is installed.
    return f"uv sync --inexact --package {name} {extras}" if again is None else f"uv run --all-packages {extras} {again}"


def _program(project: Path) -> str | None:
    """The command line of the program that runs, as `uv run` takes it; None if it is none of the project's."""
    started = Path(sys.argv[0])
    whole, prefix = started.absolute(), Path(sys.prefix)
    if whole == prefix / "bin" / "rlinf":
        return shlex.join(["rlinf", *sys.argv[1:]])
    # The workers of a cluster are started by scripts inside the environment.
    own = started.suffix == ".py" and project in whole.parents and prefix not in whole.parents and whole.is_file()
    return shlex.join([str(started), *sys.argv[1:]]) if own else None


def _with_implied(name: str, extras: Iterable[str]) -> set[str]:
    """Extras of a distribution, and those that they are made of."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        lines = []
    found, open_ = set(extras), list(extras)
    while open_:
        extra = open_.pop()
        for line in lines:
            needed, by = _EXTRAS.match(line), _NEEDED_BY.search(line)
            if needed and by and needed[1] == name and by[1] == extra:
                new = set(needed[2].split(",")) - found
                found |= new
                open_ += new
    return found

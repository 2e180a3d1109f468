"""The `rlinf` command: a dispatcher over the entry-point group `rlinf.commands`.

Each part brings its own commands, so a part that is installed alone has them and no part imports another for their sake. A
command is a function from its arguments to an exit code.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path

from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.errors import RLinfError, UnknownName, did_you_mean, error_text
from rlinf.core.installing import import_from_here
from rlinf.core.registry import is_unverified

Command = Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `rlinf <command> …`; errors of ours are shown without a traceback. Modules of the current folder can be named."""
    import_from_here()
    args = list(sys.argv[1:] if argv is None else argv)
    points = {point.name: point for point in entry_points(group="rlinf.commands")}
    try:
        if not args or args[0] in ("-h", "--help"):
            _write(_usage())
            code = 0 if args else 2
        elif args == ["--version"]:
            _write(_versions())
            code = 0
        elif args[0] not in points:
            raise UnknownName("rlinf", f"no command '{args[0]}'", did_you_mean(args[0], list(points), label="Commands"))
        else:
            command: Command = points[args[0]].load()
            code = command(args[1:])
        # Here, where a pipe that nobody reads is handled; the interpreter's own flush would print a traceback at its end.
        sys.stdout.flush()
        return code
    except RLinfError as error:
        sys.stderr.write(f"{error_text(error)}\n")
        return error.exit_code
    except BrokenPipeError:
        # Whoever read, such as `head`, has enough; the interpreter must not find the same when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def plugins(args: Sequence[str]) -> int:
    """Lists everything that installed packages register, by group: `rlinf plugins [group]`.

    What is of a named group is imported, and marked where that fails; all of them would take too long.

    Raises:
        UnknownName: nothing is registered in a group of that name.
    """
    parser = ArgumentParser(prog="rlinf plugins", description="Lists everything that installed packages register, by group.")
    text = "such as rlinf.envs, whose plugins are then imported, too, to see whether they can be"
    parser.add_argument("groups", nargs="*", metavar="group", help=text)
    asked = parser.parse_args(list(args)).groups
    groups: dict[str, list[str]] = {}
    for distribution in distributions():
        for point in distribution.entry_points:
            if point.group.startswith("rlinf."):
                mark = "  unverified" if is_unverified(point.value) else ""
                mark += _failure(point) if point.group in asked else ""
                line = f"  {point.name:20} {point.value}  ({distribution.name} {distribution.version}){mark}"
                groups.setdefault(point.group, []).append(line)
    for group in asked:
        if group not in groups:
            raise UnknownName("rlinf plugins", f"no group '{group}'", did_you_mean(group, list(groups), label="Groups"))
    for group in sorted(asked or groups):
        # A distribution is found once for each entry of `sys.path` that leads to it.
        _write("\n".join([group, *sorted(set(groups[group]))]))
    return 0


def _failure(point: EntryPoint) -> str:
    """Why it can't be imported; "" if it can."""
    try:
        point.load()
    # Whatever another project's module raises when it is imported.
    except Exception as error:  # noqa: BLE001
        return f"  can't be imported: {error_text(error)}"
    return ""


def _usage() -> str:
    points = {point.name: point for point in entry_points(group="rlinf.commands")}
    lines = [f"  {name:14}{_about(points[name])}" for name in sorted(points)]
    more = "rlinf <command> --help says what each takes; rlinf --version, which parts are installed."
    return "\n".join(["usage: rlinf <command> [arguments]", "", "commands of the installed parts:", *lines, "", more])


def _versions() -> str:
    """The installed parts, a line for each."""
    found = {each.name: each.version for each in distributions() if re.fullmatch(r"rlinf(-[a-z]+)?", each.name or "")}
    return "\n".join(f"{name} {found[name]}" for name in sorted(found))


def _about(point: EntryPoint) -> str:
    """What a command does in a line: how its docstring begins, which is read and not imported, as some import torch."""
    try:
        spec = find_spec(point.module)
        tree = ast.parse(Path((spec and spec.origin) or "").read_text(encoding="utf-8"))
    # Whatever another project's package raises when it is imported.
    except Exception:  # noqa: BLE001
        return point.value
    found = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == point.attr)
    text = next((ast.get_docstring(each) for each in found), None)
    return point.value if text is None else text.partition("\n")[0].partition(": `")[0].rstrip(".")


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")

"""`rlinf sandbox`: how far this machine can confine programs; and one program, run so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.config.arguments import ArgumentParser, real, whole
from rlinf.core.errors import ConfigError
from rlinf.core.sandbox import Execution, ExecutionLimits
from rlinf.envs.sandbox.levels import LEVELS, MEANING
from rlinf.envs.sandbox.process import ProcessSandbox


def sandbox(args: Sequence[str]) -> int:
    """Says how far programs can be confined here, or runs one: `rlinf sandbox`, `rlinf sandbox program.py < its-input`.

    Returns:
        0 if a level is allowed, or the program ended well; 1 otherwise.
    """
    parser = ArgumentParser(prog="rlinf sandbox", description="How far this machine can confine programs; runs one.")
    parser.add_argument("program", nargs="?", help="a file in Python to run; its levels are listed without")
    parser.add_argument("--level", choices=LEVELS, default=LEVELS[-1], help=f"the least that it must be confined ({LEVELS[-1]})")
    parser.add_argument("--wall-s", type=real(0, open_low=True), default=10.0, help="seconds that it may take (10)")
    parser.add_argument("--memory-mb", type=whole(1), default=512, help="MiB that it may take (512)")
    parser.add_argument("--processes", type=whole(1), default=1, help="processes that it may have at one time (1)")
    given = parser.parse_args(list(args))
    if given.program is None:
        return _list_levels()
    path = Path(given.program)
    if not path.is_file():
        raise ConfigError("sandbox", f"there is no file '{path}'")
    stdin = "" if sys.stdin.isatty() else sys.stdin.read()
    limits = ExecutionLimits(wall_s=given.wall_s, memory_mb=given.memory_mb, processes=given.processes)
    with ProcessSandbox(level=given.level, workers=1).build() as running:
        (result,) = running.run([Execution(program=path.read_text(encoding="utf-8"), stdin=stdin, limits=limits)])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    sys.stderr.write(f"{result.reason} (status {result.status}), {result.wall_s:.3f} s, {result.cpu_s:.3f} CPU-s\n")
    return 0 if result.ok else 1


def _list_levels() -> int:
    refusals = {level: ProcessSandbox(level=level).refusal() for level in LEVELS}
    for level in LEVELS:
        refusal = refusals[level]
        sys.stdout.write(f"{'no ' if refusal else 'yes'}  {level:12} a program {MEANING[level]}\n")
        if refusal:
            sys.stdout.write(f"                  not here: {refusal}\n")
    return 0 if not all(refusals.values()) else 1

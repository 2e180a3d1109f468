"""Where compiled Python code is kept if `PYTHONDONTWRITEBYTECODE` forbids to keep it beside its sources."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

FORBIDS: Final = "PYTHONDONTWRITEBYTECODE"
PREFIX: Final = "PYTHONPYCACHEPREFIX"
SWITCH: Final = "RLINF_BYTECODE_CACHE"
_HEAVY: Final = ("torch", "ray")
"""What takes longest to compile of all that a run imports."""


def keep_bytecode() -> None:
    """Keeps compiled code in `rlinf/bytecode` of the user's cache folder, where `PYTHONDONTWRITEBYTECODE` is set.

    Images of containers set it so that nothing is written beside sources, and nothing is, with this neither. But with it each
    process of a run compiles again all that it imports, which doubles what a start takes. It holds for this process and those that
    it starts. Nothing is changed if `PYTHONPYCACHEPREFIX` names a folder, if packages were compiled when they were installed, if
    there is no folder that can be written, or with `RLINF_BYTECODE_CACHE=0`.
    """
    if not os.environ.get(FORBIDS) or not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return
    if os.environ.get(SWITCH) == "0" or _compiled() or _alike():
        return
    folder = _folder()
    if folder is None:
        return
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    os.environ[PREFIX] = str(folder)
    del os.environ[FORBIDS]


def _sources() -> dict[Path, Path | None]:
    """The file of each heavy package that is installed, and where its compiled code would be beside it."""
    specs = [spec for name in _HEAVY if (spec := find_spec(name)) is not None and spec.origin is not None]
    return {Path(spec.origin or ""): Path(spec.cached) if spec.cached else None for spec in specs}


def _compiled() -> bool:
    """Whether the heavy packages are compiled already; then a folder of our own would compile them a second time."""
    return all(cached is not None and cached.is_file() for cached in _sources().values())


def _alike() -> bool:
    """Whether whoever built the image gave all files one time. Python then can't tell those of the next image from these."""
    # Compiled code has the time of its source in whole seconds.
    times = [int(path.stat().st_mtime) for path in (Path(__file__), *_sources()) if path.is_file()]
    return len(times) > 1 and len(set(times)) == 1


def _folder() -> Path | None:
    """The folder, which belongs to this user alone; None if there can be none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = base.expanduser() / "rlinf" / "bytecode"
        if not folder.is_absolute():
            return None
        if not folder.is_dir():
            folder.mkdir(parents=True, mode=0o700)
            sys.stderr.write(f"{FORBIDS} is set: compiled code is kept in {folder}, for faster starts ({SWITCH}=0: nowhere)\n")
        found = folder.stat()
    # RuntimeError: nobody knows where the home of this user is.
    except (OSError, RuntimeError):
        return None
    # Code that others could put there would run as this user.
    own = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if own and os.access(folder, os.W_OK) else None

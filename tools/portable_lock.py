"""Keeps `uv.lock` portable: it pins every version, and names no index and no download address.

    uv run tools/portable_lock.py install    once per clone: teaches git to commit the portable form
    uv run tools/portable_lock.py check      what git holds is portable, and uv resolves it to the same versions
    uv run tools/portable_lock.py clean      from stdin to stdout; git calls it

uv takes the versions of an existing lock as preferences even where it must resolve again, and it must do so here: without the
artifacts and the members' metadata it knows that the lock is not complete. It then writes its full copy, with the addresses of
*your* index, into the working tree; the git filter keeps that copy out of commits.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = "uv.lock"
FILTER = "filter.portable-lock.clean"
FILTER_COMMAND = "python3 tools/portable_lock.py clean"
HOOKS = ".githooks"

_REGISTRY = re.compile(r'registry = "[^"]*"')
_REVISION = re.compile(r"^revision = \d+\n", re.MULTILINE)
_SDIST = re.compile(r"^sdist = .*\n", re.MULTILINE)
_WHEELS = re.compile(r"^wheels = \[(?:\n(?:    .*\n)*\]|.*\])\n", re.MULTILINE)
_MARKERS = re.compile(r"^(resolution-markers = \[\n)((?:    .*\n)*)(\]\n)", re.MULTILINE)
_METADATA = re.compile(r"^\[package\.metadata(?:\.[^\]]*)?\]\n(?:(?!\[).+\n)*\n?", re.MULTILINE)
_ADDRESS = re.compile(r"https?:|//|\bfile:")
_PIN = re.compile(r'^name = "([^"]+)"\nversion = "([^"]+)"', re.MULTILINE)


class LockError(Exception):
    """The lock can't be committed or used; the text says why and what to do."""


def portable(lock: str) -> str:
    """The lock without artifacts, member metadata, registry addresses and uv's format revision, its markers in sorted order.

    Raises:
        LockError: an address is left, for example that of a git dependency.
    """
    for pattern in (_REVISION, _SDIST, _WHEELS, _METADATA):
        lock = pattern.sub("", lock)
    lock = _MARKERS.sub(_sorted_entries, lock)
    lock = _REGISTRY.sub('registry = "index"', lock).rstrip("\n") + "\n"
    for number, line in enumerate(lock.splitlines(), start=1):
        if _ADDRESS.search(line):
            raise LockError(f"{LOCK}:{number}: expected no address, found {line.strip()!r}. Depend on a released version instead.")
    return lock


def _sorted_entries(block: re.Match[str]) -> str:
    opening, entries, closing = block.groups()
    return opening + "".join(sorted(entries.splitlines(keepends=True))) + closing


def pins(lock: str) -> set[tuple[str, str]]:
    """Pairs of name and version."""
    return set(_PIN.findall(lock))


def committed() -> str:
    """The lock as git would commit it; the file itself where there is no git."""
    shown = subprocess.run(["git", "show", f":{LOCK}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 else (ROOT / LOCK).read_text(encoding="utf-8")


def resolved(lock: str) -> str:
    """What uv makes of a lock and the projects' requirements, in a copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for path in [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]:
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (copy / LOCK).write_text(lock, encoding="utf-8")
        done = subprocess.run(["uv", "lock", "--quiet"], cwd=copy, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LockError(f"{LOCK}: uv can't resolve it:\n{done.stderr}")
        return (copy / LOCK).read_text(encoding="utf-8")


def check_form(lock: str) -> None:
    """Refuses a lock that is not in portable form."""
    if portable(lock) != lock:
        raise LockError(
            f"{LOCK}: expected the portable form, found uv's own. "
            "Run `uv run tools/portable_lock.py install`, then `git add --renormalize uv.lock`."
        )


def is_resolved(lock: str) -> bool:
    """Whether uv has already made its full copy of this lock, and finds that it still answers the projects' requirements."""
    full = (ROOT / LOCK).read_text(encoding="utf-8")
    if full == lock or portable(full) != lock:
        return False
    return subprocess.run(["uv", "lock", "--check", "--quiet"], cwd=ROOT, capture_output=True, check=False).returncode == 0


def check() -> None:
    """Refuses a lock that is not portable, or that uv resolves to other versions."""
    lock = committed()
    check_form(lock)
    if is_resolved(lock):  # in a fresh clone `uv run` has just resolved it, which takes 20 CPU-s
        return
    before, after = pins(lock), pins(resolved(lock))
    if before != after:
        lines = [f"  - {n} {v}" for n, v in sorted(before - after)] + [f"  + {n} {v}" for n, v in sorted(after - before)]
        raise LockError(f"{LOCK}: uv resolves other versions. Run `uv lock` and commit {LOCK}.\n" + "\n".join(lines))


def install() -> None:
    """Configures this clone: the filter that cleans on `git add`, and the hook that refuses what is not clean."""
    for key, value in ((FILTER, FILTER_COMMAND), ("core.hooksPath", HOOKS)):
        subprocess.run(["git", "config", key, value], cwd=ROOT, check=True)
    subprocess.run(["git", "add", "--renormalize", LOCK], cwd=ROOT, check=True)


def main(argv: list[str]) -> int:
    """Runs one command; returns the exit code."""
    command = argv[0] if len(argv) == 1 else ""
    try:
        if command == "clean":
            sys.stdout.write(portable(sys.stdin.read()))
        elif command == "check-form":
            check_form(committed())
        elif command == "check":
            check()
        elif command == "install":
            install()
        else:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    except LockError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

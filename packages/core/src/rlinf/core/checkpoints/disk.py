"""Files of checkpoints: on the disk before a rename gives them their name, as a power cut must not leave a name without content."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from rlinf.core.errors import CheckpointError


def flush_to_disk(path: Path) -> None:
    """Returns when a file, or a folder with everything below it, is on the disk."""
    if path.is_dir():
        for below in path.rglob("*"):
            _flush(below)
    _flush(path)


def rename_on_disk(path: Path, target: Path) -> None:
    """Renames a file or a folder, and returns when the new name is on the disk; both are in one folder."""
    path.rename(target)
    _flush(target.parent)


def file_sha256(path: Path) -> str:
    """The SHA-256 of what a file holds, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unwritten(path: Path, problem: str, error: Exception) -> CheckpointError:
    """What is told of a part of a checkpoint that can't be written.

    Args:
        path: where it was to be.
        problem: what can't be written, and why.
        error: of the system, or of a library that has it in its text only.
    """
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)
    room = "Make room. " if full else ""
    return CheckpointError(str(path), problem, f"{room}The checkpoints before this one are whole.")


def _flush(path: Path) -> None:
    # What a link leads to is somebody else's; a pipe can't be flushed.
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    # A folder is a file of names, which is flushed alone.
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

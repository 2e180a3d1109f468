"""Onto the disk before a rename says that it is there: a power cut must not leave a name without content."""

from __future__ import annotations

import os
from pathlib import Path


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

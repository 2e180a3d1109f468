"""Folders and files that are there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlinf.core.checkpoints.disk import flush_to_disk, rename_on_disk
from rlinf.core.errors import CheckpointError

MARK = "config.json"
"""What tells a checkpoint from any other folder, which must never be replaced."""


@contextmanager
def fresh_folder(folder: Path, *, overwrite: bool) -> Generator[Path]:
    """A temporary folder beside `folder`, which takes its place when the block ends well and is removed when it doesn't.

    An older checkpoint is moved aside first and removed last: for an instant there is none of that name, never half of one.

    Raises:
        CheckpointError: `folder` is there already and must not be replaced.
    """
    refuse_existing(folder, overwrite=overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, for a rename works within one file system only.
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    # mkdtemp lets nobody but its owner in.
    made.chmod(0o755)
    try:
        yield made
        flush_to_disk(made)
        _replace(made, folder)
    # KeyboardInterrupt, too, must leave nothing behind.
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


@contextmanager
def fresh_file(file: Path) -> Generator[Path]:
    """A temporary file beside `file`, which takes its place when the block ends well; else a folder made for it goes, too."""
    new = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps writers of the same file apart.
    made = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield made
        flush_to_disk(made)
        rename_on_disk(made, file)
    except BaseException:
        made.unlink(missing_ok=True)
        if new:
            with suppress(OSError):  # somebody else writes there, too
                file.parent.rmdir()
        raise


def refuse_existing(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder that holds something, unless it is a checkpoint that may be replaced.

    Raises:
        CheckpointError: it does.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise CheckpointError(str(folder), "is there already", "Choose another folder, or set overwrite.")
    if not (folder / MARK).is_file():
        raise CheckpointError(str(folder), f"is no checkpoint (it has no {MARK}) and is not replaced", "Choose another folder.")


def _replace(made: Path, folder: Path) -> None:
    if not folder.exists():
        rename_on_disk(made, folder)
        return
    old = made.with_suffix(".old")
    # A rename can't replace a folder that holds something.
    folder.rename(old)
    try:
        rename_on_disk(made, folder)
    except BaseException:
        # The older checkpoint comes back under its name, unless the new one stands there already.
        if not folder.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old)

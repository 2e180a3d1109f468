"""Files that are either complete or not there, in a folder with one writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from rlinf.core.errors import RLinfError


@contextlib.contextmanager
def replaced(path: Path) -> Generator[Path]:
    """A path to write to, that becomes `path` when the block is left; the former file stays until then, and after an error.

    Raises:
        RLinfError: the system refuses to write.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        # On disk before it gets its name: after a power failure the name must not stand for an empty file.
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise RLinfError("recording", f"{path} can't be written: {error}", "Look for a full disk and missing rights.") from error
    finally:
        part.unlink(missing_ok=True)


class FolderLock:
    """Keeps a second writer out of a folder; the system releases it when the process dies.

    Args:
        folder: made if missing.

    Raises:
        RLinfError: another process writes there, or the folder can't be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / ".lock").open("w")
        except OSError as error:
            raise RLinfError("recording", f"{folder} can't be written: {error}", "Choose another folder.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise RLinfError("recording", f"another writer is at work in {folder}", "Give each process a folder.") from error

    def release(self) -> None:
        """Lets others write; a second call does nothing."""
        self._file.close()

"""Files that are either complete or not there, in a folder with one writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from rlinf.core.errors import ConfigError, RLinfError

_LOCK = ".lock"
JOURNAL = ".collection.jsonl"
"""Which episodes a collection has written; see `continuing`."""
_SHOWN = 3
"""Names that a message lists."""


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


def expect_new(folder: Path, place: str) -> None:
    """Refuses a place where something is already, to which a new dataset would be added.

    Raises:
        ConfigError: it is a file, or a folder that is not empty.
    """
    remedy = "Remove it, or name another folder."
    if folder.exists() and not folder.is_dir():
        raise ConfigError(place, f"expected a new folder, found a file at '{folder}'", remedy)
    held = sorted(each.name for each in folder.iterdir() if each.name not in (_LOCK, JOURNAL)) if folder.exists() else []
    if held:
        raise ConfigError(place, f"expected a new folder, found '{folder}' with {', '.join(held[:_SHOWN])} in it", remedy)


class FolderLock:
    """Keeps a second writer out of a folder; the system releases it when the process dies.

    Args:
        folder: made if missing.

    Raises:
        ConfigError: another process writes there, or the folder can't be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / _LOCK).open("w")
        except OSError as error:
            problem = f"'{folder}' can't be written ({error.strerror})"
            raise ConfigError("recording", problem, "Choose another folder.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError("recording", f"another writer is at work in {folder}", "Give each process a folder.") from error

    def release(self) -> None:
        """Lets others write, and takes with it a folder that it has made if nothing was written; a second call does nothing."""
        if self._file.closed:
            return
        if self._made and [each.name for each in self._folder.iterdir()] == [_LOCK]:
            with contextlib.suppress(OSError):
                (self._folder / _LOCK).unlink()
                self._folder.rmdir()
        self._file.close()

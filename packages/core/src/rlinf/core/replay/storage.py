"""Where the columns of a buffer are: in memory, or in files that are mapped into memory."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import RLinfError


@dataclass(frozen=True, slots=True)
class Storage:
    """Makes columns."""

    folder: Path | None
    """On whose disk large ones are; None: all are in memory."""
    large: str
    """How the names of large ones begin."""

    def column(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of zeros.

        Raises:
            RLinfError: the disk has no room for it.
        """
        if self.folder is None or not name.startswith(self.large):
            return np.zeros(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Without a name in the file system it is gone when the array is, however the process ends.
            with tempfile.TemporaryFile(dir=self.folder) as file:
                # All of it now: a page for which no block is left when it is written would kill the process.
                os.posix_fallocate(file.fileno(), 0, max(1, size))
                # As a plain array, which is faster to index.
                return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
        except OSError as error:
            problem = f"{size / 2**30:.3g} GiB for '{name}' can't be had on this disk ({error.strerror})"
            raise RLinfError(str(self.folder), problem, "Lower the capacity of the replay buffer, or make room.") from error

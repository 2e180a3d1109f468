"""Memory that processes share."""

from __future__ import annotations

import mmap
import os


class SharedMemory:
    """Memory that is handed on as an open file, by `ChildProcess(pass_fds=…)` or over a Unix socket.

    It has no name (memfd), so that nothing is left behind however a process ends: the kernel gives it back when the last
    descriptor is closed and the last mapping gone.

    Args:
        fd: a descriptor of memory that another process has made, which stays the caller's; None makes new memory.
    """

    # For `__del__`, which also runs where the constructor has failed.
    _owned = False

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("rlinf", os.MFD_CLOEXEC) if fd is None else fd
        self._owned = fd is None

    def map(self, size: int) -> mmap.mmap:
        """The first bytes of it, writable, which are zeros until somebody writes; it grows to `size` if it is smaller.

        The mapping outlives `close`, and lasts as long as anything that was made of it, such as an array.
        """
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        return mmap.mmap(self.fd, size)

    def close(self) -> None:
        """Closes the descriptor if it was made here, as the end of this object does; more than once is fine."""
        if self._owned:
            self._owned = False
            os.close(self.fd)

    __del__ = close

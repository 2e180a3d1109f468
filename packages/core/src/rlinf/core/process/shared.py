"""What a process keeps one of for each key: processes and connections that it has started."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closes(Protocol):
    """Something that ends."""

    def close(self) -> None:
        """Ends it; more than once is fine."""
        ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Closes)


class Shared(Generic[K, V]):
    """One value for each key, made by the first who asks; all end with the process.

    A forked child has none of its parent's: it could not speak to a process that the parent speaks to, and must not end it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[int, K], V] = {}
        atexit.register(self.close)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; `make` makes it if there is none."""
        with self._lock:
            own = (os.getpid(), key)
            # Made under the lock: two threads that ask at once must not start two.
            if own not in self._made:
                self._made[own] = make()
            return self._made[own]

    def close(self) -> None:
        """Ends what this process has made; the next who asks makes it anew."""
        with self._lock:
            for own in [own for own in self._made if own[0] == os.getpid()]:
                self._made.pop(own).close()

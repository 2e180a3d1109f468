"""Which session a request belongs to."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from rlinf.core.errors import ConfigError
from rlinf.engines.endpoint.chat_request import APIError
from rlinf.engines.endpoint.session import Session

HEADER: Final = "x-session-id"
"""By which a client names its session."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PATH: Final = re.compile(r"/sessions/(?P<name>[^/]+)(?P<rest>/v1(?:/.*)?)")


class Sessions:
    """The sessions of an endpoint.

    Args:
        begin: makes one of a name, for clients that opened none.
        most: how many of those are kept; of more, the one that was silent longest is forgotten.
    """

    def __init__(self, begin: Callable[[str], Session], most: int) -> None:
        self._begin, self._most = begin, most
        self._opened: dict[str, Session] = {}
        self._other: OrderedDict[str, Session] = OrderedDict()

    def open(self, name: str, session: Session) -> None:
        """Takes a session that stays until it is closed.

        Raises:
            ConfigError: the name can't be part of an address, or is taken.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError("session", f"expected letters, digits, '.', '_' and '-', found '{name[:130]}'")
        if name in self._opened:
            raise ConfigError("session", f"'{name}' is open already", "Give each session its own name.")
        self._opened[name] = session

    def forget(self, name: str) -> None:
        """Drops a session."""
        self._opened.pop(name, None)
        self._other.pop(name, None)

    def is_open(self, name: str) -> bool:
        """Whether it was opened, and not only talked to."""
        return name in self._opened

    def find(self, name: str) -> Session | None:
        """A session that has been talked to or opened."""
        return self._opened.get(name) or self._other.get(name)

    def of(self, name: str | None, headers: Mapping[str, str], user: str | None, key: str) -> Session:
        """The session of a request.

        A session stands in the address (`split_path`, for those that were opened), or else in the header `x-session-id`, or else in
        the field `user`, or else there is one for each key.

        Raises:
            APIError: nobody opened the session that the address names.
        """
        if name is not None:
            found = self._opened.get(name)
            if found is None:
                raise APIError(404, f"there is no session '{name[:130]}', or it is closed", code="session_not_found")
            return found
        # A key is no name: it is not shown.
        named = headers.get(HEADER) or user or (f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else "default")
        if named in self._opened:
            return self._opened[named]
        if named not in self._other:
            self._other[named] = self._begin(named)
            while len(self._other) > self._most:
                self._other.popitem(last=False)
        self._other.move_to_end(named)
        return self._other[named]


def split_path(path: str) -> tuple[str | None, str]:
    """The session that an address names, `/sessions/NAME/v1/…`, and the address without it."""
    match = _PATH.fullmatch(path)
    return (None, path) if match is None else (match["name"], match["rest"])

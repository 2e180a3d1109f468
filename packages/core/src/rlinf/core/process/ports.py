"""A free TCP port."""

from __future__ import annotations

import random
import socket

from rlinf.core.errors import ConfigError

LOWEST = 1024
"""Ports below belong to the system."""


def free_port(host: str = "", *, max_port_num: int = 65535) -> int:
    """A TCP port on which nobody listens now; another process may take it before it is used.

    Args:
        host: an address of this machine; "" for all of them.
        max_port_num: the highest that will do.

    Raises:
        ConfigError: none of them is free.
    """
    # Processes that ask at the same time should not get the same answer, so the ports up to a limit are tried in random order.
    limited = random.sample(range(LOWEST, max_port_num + 1), max(0, max_port_num + 1 - LOWEST)) if max_port_num < 65535 else []
    # With port 0 the kernel chooses one.
    for port in (0, *limited):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
        if found <= max_port_num:
            return found
    raise ConfigError("free_port", f"no port from {LOWEST} to {max_port_num} is free", "Raise max_port_num.")
